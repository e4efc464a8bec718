"""The outbox's messages on their way: which of them one script takes together, and what it says of each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import msgpack

from .connection import Call
from .messages import Message, keys_of
from .scripts import EMIT
from .settings import BrokerSettings, milliseconds

_TOGETHER: Final = 64
"""Requests of one script: the server does nothing else meanwhile, for about half a millisecond."""


@dataclass(frozen=True, slots=True)
class ScriptBatch:
    """Messages that one call stands for."""

    messages: list[Message]
    call: Call

    def replies(self, reply: Any) -> Iterator[tuple[Message, Any]]:
        """What the call's ``reply`` says of each; an error is everybody's."""
        if isinstance(reply, Exception) or self.messages[0].call is not None:
            return ((message, reply) for message in self.messages)
        return zip(self.messages, msgpack.unpackb(reply, raw=True), strict=True)


def script_batches(
    settings: BrokerSettings, consumer: str, messages: Sequence[Message], *, alone: bool = False
) -> list[ScriptBatch]:
    """Events together, as far as they may be; what has a call of its own ``alone``, or all.

    Probes are apart from events: they are answered where the server has no memory for more.
    """
    together = 1 if alone or settings.clustered else _TOGETHER
    packed: list[ScriptBatch] = []
    for kind in ("event", "probe"):
        rest = (message for message in messages if message.kind == kind)
        while group := list(islice(rest, together)):
            packed.append(ScriptBatch(group, _emit(settings, consumer, group)))
    return packed + [ScriptBatch([message], message.call) for message in messages if message.call is not None]


def _emit(settings: BrokerSettings, consumer: str, group: list[Message]) -> Call:
    keys: list[str] = []
    events: list[tuple[int, int, int, bytes]] = []
    for message in group:
        keys += keys_of(settings, message.owned)
        events.append((message.owned.epoch, message.seq, message.count, message.event))
    packed: Any = msgpack.packb(events, use_bin_type=False)  # all strings are bytes to Lua
    return EMIT.call(keys, [consumer, milliseconds(settings.request_ttl), settings.publish, packed])
