"""What the outbox has to say of one request, as it stands, and what its success would mean."""

from dataclasses import dataclass
from typing import Literal

from ...clients.protocol import GROUP, LANES, PRIORITIES, Delta, Done, ErrorInfo, Usage, encode_event
from .connection import Call
from .entries import Held
from .output import Output
from .results import Ending
from .scripts import FINISH, SETTLE
from .settings import BrokerSettings, milliseconds

_LONGEST_UNREADABLE = 64 << 10
"""Bytes kept of an entry that no one can run again."""


@dataclass(frozen=True, slots=True)
class Message:
    """Of one request: an ``event``, which has ``count`` tokens after ``seq``, or a question how it stands,
    without an event; or an end or a settlement, which is a ``call``. ``size`` is that of events in it."""

    kind: Literal["event", "question", "end", "settlement"]
    held: Held
    seq: int = 0
    count: int = 0
    size: int = 0
    event: bytes = b""
    call: Call | None = None


def next_message(settings: BrokerSettings, consumer: str, held: Held, output: Output) -> Message | None:
    """The request's end if it has come, else its new output, if any."""
    if output.ending is not None:
        return _end(settings, consumer, held, output, output.ending)
    event = output.next_event(held.epoch)
    if event is None:
        return None
    data = encode_event(event)
    return Message("event", held, event.seq, len(event.tokens), len(data), data)


def question(held: Held, output: Output) -> Message:
    """Does the claim stand, is it to be cancelled, and is the log as long as it was?"""
    return Message("question", held, output.logged)


def settlement(settings: BrokerSettings, held: Held) -> Message:
    """Take the entry off its queue, leaving a dead letter where one is due."""
    body = (held.body or b"") if held.dead else b""
    if held.request_id is None:
        body = body[:_LONGEST_UNREADABLE]
    keys = settings.keys
    touched = [queue_of(settings, held), keys.dead(settings.model)]
    if held.request_id is not None and not settings.clustered:
        touched.append(keys.request(held.request_id))
    arguments = [GROUP, held.entry.id, held.dead, held.entry.deliveries, body, settings.dead_letters]
    return Message("settlement", held, call=SETTLE.call(touched, arguments))


def queue_of(settings: BrokerSettings, held: Held) -> str:
    """The stream that the entry is on."""
    return queue_at(settings, held.entry.stream)


def queue_at(settings: BrokerSettings, stream: int) -> str:
    """The queue stream of this number, see ``Entry``."""
    priority, lane = divmod(stream, LANES)
    return settings.keys.queue(settings.model, PRIORITIES[priority], lane)


def keys_of(settings: BrokerSettings, held: Held) -> list[str]:
    """Of a claimed request: its hash, its event log and its channel."""
    if held.request_id is None:
        raise ValueError("an entry without a request id has no keys")
    keys = settings.keys
    return [keys.request(held.request_id), keys.events(held.request_id), keys.channel(held.request_id)]


def _end(settings: BrokerSettings, consumer: str, held: Held, output: Output, ending: Ending) -> Message:
    total = len(ending.tokens)
    error = None
    if ending.error_code is not None:
        error = ErrorInfo(ending.error_code, ending.error_message or ending.error_code)
    done = Done(
        seq=total,
        epoch=held.epoch,
        finish_reason=ending.reason,
        usage=Usage(ending.prompt_tokens, total, ending.cached_tokens),
        metadata=held.metadata,
        error=error,
    )
    whole, rest = _encoded(output.whole(held.epoch)), _encoded(output.rest(held.epoch))
    last = encode_event(done)
    ttl = milliseconds(settings.result_ttl)
    about = [ending.reason, ttl, settings.publish, held.dead]
    call = FINISH.call(keys_of(settings, held), [held.epoch, consumer, total, whole, rest, last, *about])
    return Message("end", held, total, size=len(whole) + len(rest) + len(last), call=call)


def _encoded(event: Delta | None) -> bytes:
    return b"" if event is None else encode_event(event)
