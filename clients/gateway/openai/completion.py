"""One OpenAI completion: the results of its choices' requests as one object, or their events as chunks."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from ...async_client import AsyncHandle
from ...protocol import Delta, Done, Event, FinishReason, Usage
from ...result import Result
from ...transcript import Transcript
from ..admission.admission import cancel_all
from ..errors import api_error_of, cancelled, expired, worker_error
from ..json_body import compact
from ..streams.delivery import FAILURES
from ..streams.merge import merge_events
from ..streams.position import StreamPosition
from ..streams.sse import HEARTBEAT, frame
from .placement import PlacedToken, Placement
from .vocabulary import Vocabulary

_STATUS_WAIT = 2.0
"""Seconds that a stream's HTTP status is delayed, so that an immediate failure is an error response."""


class Format(Protocol):
    """Format of choices: ``ChatFormat`` or ``CompletionFormat``."""

    whole: ClassVar[str]
    chunk: ClassVar[str]

    @property
    def vocabulary(self) -> Vocabulary | None: ...
    def choice(self, index: int, result: Result, placed: Sequence[PlacedToken] | None) -> dict[str, Any]: ...
    def opening(self, index: int) -> dict[str, Any] | None: ...
    def piece(self, index: int, text: str, placed: Sequence[PlacedToken] | None) -> dict[str, Any]: ...
    def ending(self, index: int, reason: FinishReason) -> dict[str, Any]: ...


@dataclass(slots=True)
class Completion:
    """Each prompt has ``choices_per_prompt`` requests; its tokens count once in the usage."""

    id: str
    model: str
    created: int
    format: Format
    choices_per_prompt: int = 1
    include_usage: bool = False
    ended: set[int] = field(default_factory=set[int])
    """Choices whose ``done`` has been received."""
    _usages: dict[int, Usage] = field(default_factory=dict[int, Usage])

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """The response object of a completion without ``stream``.

        Raises:
            ApiError: a choice ended with an error, expired or was cancelled. OpenAI's finish reasons have
                none for that, and a partial output must not be mistaken for a complete one.
        """
        # A choice that fails has the others cancelled; report the failure, not the cancellation.
        for result in sorted(results, key=lambda result: result.finish_reason == "cancelled"):
            _raise_failure(result.finish_reason, result)
        self._usages.update((index, result.usage) for index, result in enumerate(results))
        choices = [self._choice(index, result) for index, result in enumerate(results)]
        return self._object(self.format.whole, choices) | {"usage": self._usage()}

    async def stream(
        self,
        sources: Sequence[AsyncGenerator[Event]],
        position: StreamPosition,
        heartbeat: float,
        leave: asyncio.Future[None],
    ) -> AsyncGenerator[bytes]:
        """Frames of the chunks; with a single choice each has the stream position as its event id.

        Sources begin at the first event also when a client resumes: placing tokens in the text needs all
        that precede.

        Raises:
            ApiError, HeadraceError: before the first frame only; a later failure is a frame.
        """
        started = False
        placements = [Placement(self.format.vocabulary) for _ in sources]
        readers = [Transcript(position.tokens, position.characters) for _ in sources]
        events = merge_events(sources, min(heartbeat, _STATUS_WAIT), heartbeat, leave)
        try:
            async for item in events:
                if item is None:
                    yield HEARTBEAT
                    started = True
                    continue
                index, event = item
                if isinstance(event, Done):
                    self.ended.add(index)
                    _raise_failure(event.finish_reason, event)
                    self._usages[index] = event.usage
                else:
                    placements[index].take(_head(event, readers[index]))
                new = readers[index].take(event)
                if new is None:
                    continue
                position.advance(new)
                bodies = self._chunks(index, new, placements[index])
                for number, body in enumerate(bodies, 1):
                    # Only an event's last chunk completes its position, and only [DONE] is the end.
                    complete = len(sources) == 1 and number == len(bodies) and not position.ended
                    yield frame(body, event_id=str(position) if complete else None)
                    started = True
            if len(self.ended) == len(sources):
                if self.include_usage:
                    yield frame(compact(self._object(self.format.chunk, []) | {"usage": self._usage()}))
                yield frame(b"[DONE]", event_id=str(position) if len(sources) == 1 else None)
        except Exception as error:
            failure = api_error_of(error)
            if failure is None or not started:
                raise
            yield frame(compact(failure.body))
        finally:
            await events.aclose()

    def _choice(self, index: int, result: Result) -> dict[str, Any]:
        if result.logprobs is None:
            return self.format.choice(index, result, None)
        placement = Placement(self.format.vocabulary)
        everything = Delta(0, 0, 0, result.tokens, result.text, result.logprobs)
        return self.format.choice(index, result, placement.take(everything) + placement.end())

    def _chunks(self, index: int, event: Event, placement: Placement) -> list[bytes]:
        choices: list[dict[str, Any] | None]
        if isinstance(event, Done):
            rest = placement.end()
            choices = [
                self._opening(index, event.seq == 0),
                self.format.piece(index, "", rest) if rest else None,
                self.format.ending(index, event.finish_reason),
            ]
        else:
            placed = placement.take(event) or None
            choices = [
                self._opening(index, event.seq == 0 and event.pos == 0),
                self.format.piece(index, event.text, placed) if event.text or placed else None,
            ]
        usage = {"usage": None} if self.include_usage else {}
        chunks = [self._object(self.format.chunk, [choice]) for choice in choices if choice is not None]
        return [compact(chunk | usage) for chunk in chunks]

    def _opening(self, index: int, first: bool) -> dict[str, Any] | None:
        return self.format.opening(index) if first else None

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "system_fingerprint": None, "choices": choices}

    def _usage(self) -> dict[str, Any]:
        firsts = [self._usages[index] for index in sorted(self._usages)[:: self.choices_per_prompt]]
        prompt = sum(usage.prompt_tokens for usage in firsts)
        output = sum(usage.completion_tokens for usage in self._usages.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in firsts)},
        }


async def results_of(handles: Sequence[AsyncHandle]) -> list[Result]:
    """Results of all requests. If one fails, the others are cancelled: no response is made of them.

    Raises as ``AsyncHandle.result``.
    """
    tasks = [asyncio.ensure_future(handle.result()) for handle in handles]
    try:
        for next_result in asyncio.as_completed(tasks):
            if (await next_result).finish_reason in FAILURES:
                await cancel_all(handles)
                break
        return [await task for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _head(delta: Delta, reader: Transcript) -> Delta:
    """The part of ``delta`` that the client has received."""
    tokens = max(reader.tokens - delta.seq, 0)
    return replace(
        delta,
        tokens=delta.tokens[:tokens],
        text=delta.text[: max(reader.characters - delta.pos, 0)],
        logprobs=None if delta.logprobs is None else delta.logprobs[:tokens],
    )


def _raise_failure(reason: FinishReason, ended: Result | Done) -> None:
    if reason == "error":
        raise worker_error(ended.error)
    if reason == "expired":
        raise expired()
    if reason == "cancelled":
        raise cancelled()
