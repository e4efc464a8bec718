"""Settings of a gateway. Times are in seconds, sizes in bytes."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ..async_client import DEFAULT_QUEUE_LIMIT, DEFAULT_URL
from ..protocol import Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Raises ``ValueError`` naming the field that is out of range."""

    redis: str = field(default=DEFAULT_URL, repr=False)
    namespace: str = "headrace"
    keys_file: Path | None = None
    """API keys, see ``access.api_keys``; without it there is no authentication."""
    models: tuple[str, ...] = ()
    """Served names accepted while no worker is alive: requests submitted for them wait in the queue."""
    tokenizers: tuple[tuple[str, Path], ...] = ()
    """Served names and their ``tokenizer.json``, for the text and bytes of tokens in log-probabilities."""
    queue_limit: int = DEFAULT_QUEUE_LIMIT
    """Most requests in a model's queues; further ones get 429."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may use this gateway from a browser."""
    allowed_hosts: tuple[str, ...] = ()
    """Accepted ``Host`` headers; all if empty."""
    max_body: int = 4 << 20
    max_prompt: int = 1 << 20
    """Of all prompts of one HTTP request together, in UTF-8."""
    max_choices: int = 64
    """Prompts times ``n`` of one HTTP request."""
    default_max_tokens: int = 1024
    """Of chat completions without ``max_tokens``; a text completion gets OpenAI's default, 16."""
    max_streams: int = 12_000
    """Most streams open at a time on this gateway."""
    heartbeat: float = 15.0
    """Time without an event after which a stream sends a heartbeat."""
    write_timeout: float = 60.0
    """How long a client may read nothing before its stream is closed; it can resume from its position."""
    patience: float = 10.0
    """How long an operation is retried while Redis cannot be reached."""
    webhook_origins: tuple[str, ...] = ()
    """``https://host[:port]`` to which webhooks may be sent; none if empty."""
    webhook_secret: str | None = field(default=None, repr=False)
    """Master secret that tenants' signing secrets are derived from; the same on all gateways."""
    max_upload: int = 32 << 20
    max_batch_lines: int = 10_000
    max_files: int = 64
    """Kept per tenant, batches' results included."""
    batch_ttl: float = 24 * 3600.0
    """How long uploads, batches and their results are kept."""
    batch_window: int = 128
    """Requests of one batch that are queued or running at a time."""
    drain_grace: float = 20.0
    """On SIGTERM, how long responses in flight may take to complete."""
    traces: bool = False
    """Record spans with OpenTelemetry, which must be installed and configured."""

    def __post_init__(self) -> None:
        Keys(self.namespace)
        for limit in (
            "queue_limit", "max_body", "max_prompt", "max_choices", "default_max_tokens", "max_streams",
            "max_upload", "max_batch_lines", "max_files", "batch_window",
        ):  # fmt: skip
            if getattr(self, limit) < 1:
                raise ValueError(f"{limit}: must be at least 1, got {getattr(self, limit)}")
        for limit in ("heartbeat", "write_timeout", "patience", "batch_ttl", "drain_grace"):
            if not 0.01 <= getattr(self, limit) <= 1e7:
                raise ValueError(f"{limit}: must be from 0.01 to 1e7 seconds, got {getattr(self, limit)}")
        for origin in self.webhook_origins:
            _check_origin("webhook_origins", origin)
        for origin in self.cors_origins:
            if origin != "*":
                _check_origin("cors_origins", origin)
        if self.webhook_origins and not self.webhook_secret:
            raise ValueError("webhook_secret: is needed to sign webhooks")
        if self.webhook_secret is not None and len(self.webhook_secret) < 16:
            raise ValueError("webhook_secret: must have at least 16 characters")


def _check_origin(name: str, origin: str) -> None:
    parts = urlsplit(origin)
    plain = (
        parts.scheme in ("http", "https") and parts.hostname and origin == f"{parts.scheme}://{parts.netloc}"
    )
    if not plain or "@" in parts.netloc:
        raise ValueError(f"{name}: must be of the form https://host[:port], got {origin!r}")
