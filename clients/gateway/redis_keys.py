"""Names of the gateway's own Redis keys, all of which expire.

The keys of one script share a hash tag, and so a cluster slot.
"""

from dataclasses import dataclass
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class GatewayKeys:
    """Keys contain only ids that gateways made, or hashes: no input can reach another key."""

    namespace: str

    def rate(self, key_id: str) -> str:
        """String: theoretical arrival time (ms) of an API key's next request, for its rate limit."""
        return f"{self.namespace}:gateway:rate:{{{key_id}}}"

    def due(self, schedule: str) -> str:
        """Sorted set: tasks of one schedule by due time in ms."""
        return f"{self.namespace}:gateway:{{{schedule}}}:due"

    def tasks(self, schedule: str) -> str:
        """Hash: payload by task id."""
        return f"{self.namespace}:gateway:{{{schedule}}}:tasks"

    def file(self, file_id: str) -> str:
        """Hash: a file's metadata."""
        return f"{self.namespace}:gateway:{{{file_id}}}:file"

    def lines(self, place: str) -> str:
        """Hash: a file's lines, by number; ``place`` begins with its hash tag."""
        return f"{self.namespace}:gateway:{place}"

    def batch(self, batch_id: str) -> str:
        """Hash: a batch's metadata and status."""
        return f"{self.namespace}:gateway:{{{batch_id}}}:batch"

    def index(self, kind: str, tenant: str | None) -> str:
        """Sorted set: a tenant's files or batches, by expiry time in ms."""
        owner = "-" if tenant is None else sha256(tenant.encode()).hexdigest()[:32]
        return f"{self.namespace}:gateway:{{{owner}}}:{kind}"
