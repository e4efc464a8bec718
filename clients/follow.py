"""Following one request: its channel for speed, its log for truth."""

from collections.abc import AsyncGenerator
from time import monotonic
from typing import Final

import anyio

from .channels import Channels
from .errors import UnknownRequest
from .event_log import EventLog, decode_known
from .jitter import jittered
from .protocol import Done, Event
from .transcript import Transcript

_FIRST_SILENCE: Final = 1.0
_LONGEST_SILENCE: Final = 15.0
"""Seconds without a message after which the log is looked at anyway; doubled while nothing comes. After the
longest, workers are asked whether the request has an entry on a queue still."""
_LOOKS: Final = 50.0
"""Logs that one client looks at in a second for want of messages, at most: with thousands of silent streams,
each has its turn later. A lost connection does not wait for that, it is noticed by itself."""

_APPEARANCE_PAUSE: Final = 0.1
_ENQUEUED_WITHIN: Final = 5.0
"""Seconds from a request's state to its queue entry, after which there will be none: its client died between
the two, the server came back from a loss of power with the one and not the other, or somebody deleted it."""


async def follow(
    log: EventLog, channels: Channels, channel: str, transcript: Transcript, wait: float
) -> AsyncGenerator[Event]:
    """All that lies beyond ``transcript``, each token and character once, in order; ``Done`` is the last.

    A message that fits is passed on as it comes. Everything else is answered by reading the log: the
    confirmed subscription, a gap, a full mailbox, silence. So is ``done``: it tells how many tokens there
    are, but not how much text, and no message that was missed may cost any.

    ``wait``: seconds that an unknown request is given to appear. Raises as ``EventLog.read_new``, and
    ``UnknownRequest`` also where only the state of a submission came about, or is left: submitting again
    completes it.
    """
    appear_until = monotonic() + wait
    silence = _FIRST_SILENCE
    nowhere_since: float | None = None
    with channels.open(channel) as mailbox:
        while True:
            message = await mailbox.receive(jittered(silence, 0.8))
            event = None
            if message is not None:
                event = decode_known(message, channel)
                if event is None:
                    continue
                if not isinstance(event, Done) and not transcript.lacks_before(event):
                    if piece := transcript.take(event):
                        silence = _FIRST_SILENCE
                        yield piece
                    continue
            silence = min(2 * silence, max(_LONGEST_SILENCE, channels.number / _LOOKS))
            unknown: UnknownRequest | None = None
            try:
                async for piece in log.read_new(transcript):
                    silence = _FIRST_SILENCE
                    yield piece
                if not log.is_nowhere:
                    nowhere_since = None
                    if silence >= _LONGEST_SILENCE:
                        await log.ask_for_entry()
                else:
                    silence = _FIRST_SILENCE
                    if nowhere_since is None:
                        nowhere_since = monotonic()
                    elif monotonic() - nowhere_since > _ENQUEUED_WITHIN:
                        unknown = UnknownRequest(log.request_id)
            except UnknownRequest as error:
                unknown = error
            if event is not None and not transcript.lacks_before(event) and (piece := transcript.take(event)):
                yield piece
            if transcript.done:
                return
            if unknown is not None:
                if monotonic() >= appear_until:
                    raise unknown
                await anyio.sleep(_APPEARANCE_PAUSE)
                mailbox.mark_missed()
