"""The gateways' own keys in Redis, all of which expire, under the namespace that requests live in.

What one script touches shares a hash tag, as everywhere in Headrace.
"""

from dataclasses import dataclass
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class GatewayKeys:
    """Names are made of ids that gateways made, or of hashes, so none can escape its key."""

    namespace: str

    def rate(self, key_id: str) -> str:
        """String: when the next request of an API key is due."""
        return f"{self.namespace}:gateway:rate:{{{key_id}}}"

    def due(self, schedule: str) -> str:
        """Sorted set: tasks of one kind by the time in ms when somebody should look at them."""
        return f"{self.namespace}:gateway:{{{schedule}}}:due"

    def tasks(self, schedule: str) -> str:
        """Hash: what is to be done, by task."""
        return f"{self.namespace}:gateway:{{{schedule}}}:tasks"

    def file(self, file_id: str) -> str:
        """Hash: a file's description."""
        return f"{self.namespace}:gateway:{{{file_id}}}:file"

    def lines(self, place: str) -> str:
        """Hash: a file's lines, by number; ``place`` begins with its hash tag."""
        return f"{self.namespace}:gateway:{place}"

    def batch(self, batch_id: str) -> str:
        """Hash: a batch's description and progress."""
        return f"{self.namespace}:gateway:{{{batch_id}}}:batch"

    def index(self, kind: str, tenant: str | None) -> str:
        """Sorted set: the files or batches of a tenant, by the time in ms when they go."""
        owner = "-" if tenant is None else sha256(tenant.encode()).hexdigest()[:32]
        return f"{self.namespace}:gateway:{{{owner}}}:{kind}"
