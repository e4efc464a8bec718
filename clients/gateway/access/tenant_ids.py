"""Ids bound to a tenant, so that ownership needs no record that could be lost or raced.

An id is 32 hexadecimal digits, random or derived, followed by 32 digits of a hash of those and the tenant.
The gateway makes all ids and takes the tenant from the API key, so an id is a tenant's if its second half
matches. A tenant who copies another's id cannot make it match: with another second half it is another id,
which names nothing.
"""

import hmac
import re
from hashlib import sha256
from secrets import token_bytes
from typing import Final

_DIGITS: Final = 32
_OWNED: Final = re.compile(r"([0-9a-f]{32})([0-9a-f]{32})(?:-[0-9]{1,6})?\Z")


def new_id(tenant: str | None) -> str:
    """A new id of ``tenant``, not guessable."""
    return _bound(token_bytes(16).hex(), tenant)


def id_for(tenant: str | None, *parts: bytes) -> str:
    """The id that ``parts`` determine for a tenant, which makes repeating an operation idempotent."""
    digest = sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts))
    return _bound(digest.hexdigest()[:_DIGITS], tenant)


def part_of(owned_id: str, index: int) -> str:
    """The id of a request's choice ``index``; that of choice 0 is the id itself."""
    return f"{owned_id}-{index}" if index else owned_id


def belongs_to(owned_id: str, tenant: str | None) -> bool:
    """Whether ``owned_id`` is ``tenant``'s. False for a malformed id."""
    match = _OWNED.match(owned_id)
    return match is not None and hmac.compare_digest(_bound(match[1], tenant), match[1] + match[2])


def tenant_bytes(tenant: str | None) -> bytes:
    """The tenant as input of a hash; no two tenants, None included, have the same."""
    return b"\0" if tenant is None else b"\1" + tenant.encode()


def _bound(start: str, tenant: str | None) -> str:
    return start + sha256(start.encode() + tenant_bytes(tenant)).hexdigest()[:_DIGITS]
