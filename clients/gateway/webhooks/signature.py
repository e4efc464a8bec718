"""Webhook signatures, by the Standard Webhooks specification (standardwebhooks.com)."""

import hmac
from base64 import b64encode
from hashlib import sha256

from ..access.tenant_ids import tenant_bytes


def tenant_secret(master: str, tenant: str | None) -> str:
    """A tenant's signing secret, derived from the master secret; in the format that receivers expect."""
    return "whsec_" + b64encode(_secret(master, tenant)).decode()


def signed_headers(
    master: str, tenant: str | None, message_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """The signature headers; ``timestamp`` in Unix seconds."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.digest(_secret(master, tenant), signed, "sha256")
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{b64encode(digest).decode()}",
    }


def _secret(master: str, tenant: str | None) -> bytes:
    return hmac.digest(sha256(master.encode()).digest(), b"headrace webhook" + tenant_bytes(tenant), "sha256")
