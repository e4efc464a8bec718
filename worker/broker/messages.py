"""What the outbox has to say of one request, as it stands, and what its success would mean."""

from dataclasses import dataclass
from typing import Literal

from ...clients.protocol import GROUP, LANES, PRIORITIES, Delta, Done, ErrorInfo, Usage, encode_event
from .connection import Call
from .entries import OwnedEntry
from .output import Output
from .results import Result
from .scripts import ACK, FINISH
from .settings import BrokerSettings, milliseconds

_LONGEST_UNREADABLE = 64 << 10
"""Bytes kept of an entry that no one can run again."""


@dataclass(frozen=True, slots=True)
class Message:
    """Of one request: an ``event``, which has ``count`` tokens after ``seq``, or a probe of how it stands,
    without an event; or an end or an ack, which is a ``call``. ``size`` is that of events in it."""

    kind: Literal["event", "probe", "end", "ack"]
    owned: OwnedEntry
    seq: int = 0
    count: int = 0
    size: int = 0
    event: bytes = b""
    call: Call | None = None


def next_message(
    settings: BrokerSettings, consumer: str, owned: OwnedEntry, output: Output
) -> Message | None:
    """The request's end if it has come, else its new output, if any."""
    if output.ending is not None:
        return _end(settings, consumer, owned, output, output.ending)
    event = output.next_event(owned.epoch)
    if event is None:
        return None
    data = encode_event(event)
    return Message("event", owned, event.seq, len(event.tokens), len(data), data)


def probe(owned: OwnedEntry, output: Output) -> Message:
    """Does the claim stand, is it to be cancelled, and is the log as long as it was?"""
    return Message("probe", owned, output.logged)


def ack(settings: BrokerSettings, owned: OwnedEntry) -> Message:
    """Take the entry off its queue, leaving a dead letter where one is due."""
    body = (owned.body or b"") if owned.dead else b""
    if owned.request_id is None:
        body = body[:_LONGEST_UNREADABLE]
    keys = settings.keys
    touched = [queue_of(settings, owned), keys.dead(settings.model)]
    if owned.request_id is not None and not settings.clustered:
        touched.append(keys.request(owned.request_id))
    arguments = [GROUP, owned.entry.id, owned.dead, owned.entry.deliveries, body, settings.dead_letters]
    return Message("ack", owned, call=ACK.call(touched, arguments))


def queue_of(settings: BrokerSettings, owned: OwnedEntry) -> str:
    """The stream that the entry is on."""
    return queue_at(settings, owned.entry.stream)


def queue_at(settings: BrokerSettings, stream: int) -> str:
    """The queue stream of this number, see ``Entry``."""
    priority, lane = divmod(stream, LANES)
    return settings.keys.queue(settings.model, PRIORITIES[priority], lane)


def keys_of(settings: BrokerSettings, owned: OwnedEntry) -> list[str]:
    """Of a claimed request: its hash, its event log and its channel."""
    if owned.request_id is None:
        raise ValueError("an entry without a request id has no keys")
    keys = settings.keys
    return [keys.request(owned.request_id), keys.events(owned.request_id), keys.channel(owned.request_id)]


def _end(
    settings: BrokerSettings, consumer: str, owned: OwnedEntry, output: Output, ending: Result
) -> Message:
    total = len(ending.tokens)
    error = None
    if ending.error_code is not None:
        error = ErrorInfo(ending.error_code, ending.error_message or ending.error_code)
    done = Done(
        seq=total,
        epoch=owned.epoch,
        finish_reason=ending.reason,
        usage=Usage(ending.prompt_tokens, total, ending.cached_tokens),
        metadata=owned.metadata,
        error=error,
    )
    whole, rest = _encoded(output.whole(owned.epoch)), _encoded(output.rest(owned.epoch))
    last = encode_event(done)
    ttl = milliseconds(settings.result_ttl)
    about = [ending.reason, ttl, settings.publish, owned.dead]
    call = FINISH.call(keys_of(settings, owned), [owned.epoch, consumer, total, whole, rest, last, *about])
    return Message("end", owned, total, size=len(whole) + len(rest) + len(last), call=call)


def _encoded(event: Delta | None) -> bytes:
    return b"" if event is None else encode_event(event)
