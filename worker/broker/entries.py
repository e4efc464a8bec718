"""The nouns of delivery: an entry of the queue, a claim on its request, and what a worker holds of both."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...clients.protocol import FinishReason, Request, TokenLogprobs
from .output import Output


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a request stands in the queue."""

    stream: int
    """Number of its queue stream, from 0: by priority, then by lane."""
    id: str
    deliveries: int
    """How many times it has been handed to a worker."""
    charge: int = 0
    """Input tokens charged to its lane when it was taken."""
    excused: bool = False
    """It was taken over from a worker whose silence says nothing: Redis could not be reached."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Output of earlier epochs: the sequence goes on after it."""

    tokens: list[int]
    text: str
    logprobs: list[TokenLogprobs] | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A request that is this worker's to run, in this epoch."""

    request: Request
    epoch: int
    attempts: int
    priority: int
    """0 to 2: of the queue stream, by which it was taken, whatever the request itself says."""
    resumed: Resumed | None
    arrival_ms: int
    """When it was enqueued, by Redis's clock: whichever worker claims it, and however often."""
    waited_ms: int
    """From then to the claim."""


@dataclass(frozen=True, slots=True)
class UnrunResult:
    """The ending of a request that this worker did not run: what earlier epochs had, and why it ends."""

    sequence_id: str
    epoch: int
    reason: FinishReason
    tokens: Sequence[int] = ()
    text: str = ""
    logprobs: Sequence[TokenLogprobs] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error_code: str | None = None
    error_message: str | None = None

    @classmethod
    def of(
        cls,
        claim: Claim,
        reason: FinishReason,
        error_code: str | None = None,
        error_message: str | None = None,
    ) -> "UnrunResult":
        """The ending of a claim that ends with what it came with."""
        resumed = claim.resumed
        return cls(
            sequence_id=claim.request.id,
            epoch=claim.epoch,
            reason=reason,
            tokens=resumed.tokens if resumed is not None else (),
            text=resumed.text if resumed is not None else "",
            logprobs=resumed.logprobs if resumed is not None else None,
            error_code=error_code,
            error_message=error_message,
        )


@dataclass(slots=True, eq=False)
class OwnedEntry:
    """An entry in this worker's hands: from when it is taken until it is acked, lost or released."""

    entry: Entry
    body: bytes | None
    """The entry's bytes, unless they are too large to be kept while the request runs."""
    request_id: str | None = None
    epoch: int = 0
    output: Output | None = None
    """Set once claimed."""
    deadline: int | None = None
    metadata: object = None
    dead: str = ""
    """Why the request becomes a dead letter when it ends."""
    ended: bool = False
    """Redis has the request's end; the entry is about to leave the queue."""
    running: bool = False
    """The serve loop has it."""
    superseded: bool = False
    """Another claim has taken the place of this one."""
    leaving: bool = False
    """It is being given back."""
    quarantined: bool = False
    """It may be what killed its earlier workers."""
    end: FinishReason | None = None
    """Why the serve loop has been told to end it."""


class OwnedEntries:
    """All that one worker holds: entries by their place, claimed ones also by request id."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, str], OwnedEntry] = {}
        self.requests: dict[str, OwnedEntry] = {}

    def take(self, entry: Entry, body: bytes | None) -> OwnedEntry | None:
        """Note an entry as taken; None when it is owned already."""
        key = (entry.stream, entry.id)
        if key in self.entries:
            return None
        owned = self.entries[key] = OwnedEntry(entry, body)
        return owned

    def has(self, owned: OwnedEntry) -> bool:
        return self.entries.get((owned.entry.stream, owned.entry.id)) is owned

    def move(self, owned: OwnedEntry, entry: Entry) -> None:
        """Another entry has taken the place of the one that is owned."""
        del self.entries[owned.entry.stream, owned.entry.id]
        owned.entry = entry
        self.entries[entry.stream, entry.id] = owned

    def claimed(self, owned: OwnedEntry, request_id: str, epoch: int, output: Output) -> None:
        owned.request_id, owned.epoch, owned.output = request_id, epoch, output
        self.requests[request_id] = owned

    def forget(self, owned: OwnedEntry) -> None:
        """The entry is no longer this worker's, or no longer in the queue."""
        key = (owned.entry.stream, owned.entry.id)
        if self.entries.get(key) is owned:
            del self.entries[key]
        if owned.request_id is not None and self.requests.get(owned.request_id) is owned:
            del self.requests[owned.request_id]

    def of(self, request_id: str, epoch: int) -> OwnedEntry | None:
        """The claim of this epoch, if it is still owned."""
        owned = self.requests.get(request_id)
        return owned if owned is not None and owned.epoch == epoch else None
