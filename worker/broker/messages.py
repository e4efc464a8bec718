"""The outbox's calls: what is sent for one request, as it stands, and what its success would mean."""

from dataclasses import dataclass
from typing import Literal

from ...clients.protocol import GROUP, LANES, PRIORITIES, Delta, Done, ErrorInfo, Usage, encode_event
from .connection import Call
from .entries import Held
from .output import Output
from .results import Ending
from .scripts import EMIT, FINISH, SETTLE
from .settings import BrokerSettings, milliseconds

_LONGEST_UNREADABLE = 64 << 10
"""Bytes kept of an entry that no one can run again."""


@dataclass(frozen=True, slots=True)
class Message:
    """One call for one request.

    ``seq`` and ``count`` are the event's tokens before and in it, ``size`` its bytes.
    """

    kind: Literal["event", "question", "end", "settlement"]
    held: Held
    call: Call
    seq: int = 0
    count: int = 0
    size: int = 0


def next_message(settings: BrokerSettings, consumer: str, held: Held, output: Output) -> Message | None:
    """The request's end if it has come, else its new output, if any."""
    if output.ending is not None:
        return _end(settings, consumer, held, output, output.ending)
    event = output.next_event(held.epoch)
    if event is None:
        return None
    data = encode_event(event)
    return _emit(settings, consumer, "event", held, event.seq, len(event.tokens), data)


def question(settings: BrokerSettings, consumer: str, held: Held, output: Output) -> Message:
    """Does the claim stand, is it to be cancelled, and is the log as long as it was?"""
    return _emit(settings, consumer, "question", held, output.logged, 0, b"")


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
    return Message("settlement", held, SETTLE.call(touched, arguments))


def queue_of(settings: BrokerSettings, held: Held) -> str:
    """The stream that the entry is on."""
    priority, lane = divmod(held.entry.stream, LANES)
    return settings.keys.queue(settings.model, PRIORITIES[priority], lane)


def _emit(
    settings: BrokerSettings,
    consumer: str,
    kind: Literal["event", "question"],
    held: Held,
    seq: int,
    count: int,
    data: bytes,
) -> Message:
    ttl = milliseconds(settings.request_ttl)
    arguments = [held.epoch, consumer, seq, count, data, ttl, settings.publish]
    return Message(kind, held, EMIT.call(_keys(settings, held), arguments), seq, count, len(data))


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
    call = FINISH.call(_keys(settings, held), [held.epoch, consumer, total, whole, rest, last, *about])
    return Message("end", held, call, total, 0, len(whole) + len(rest) + len(last))


def _encoded(event: Delta | None) -> bytes:
    return b"" if event is None else encode_event(event)


def _keys(settings: BrokerSettings, held: Held) -> list[str]:
    if held.request_id is None:
        raise ValueError("an entry without a request id has no keys")
    keys = settings.keys
    return [keys.request(held.request_id), keys.events(held.request_id), keys.channel(held.request_id)]
