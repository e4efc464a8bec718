"""What somebody saw of a request, and whether the promise allows it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Never

from simulated_model import text_of

from headrace.clients.protocol import Delta, Done, Event, TokenLogprobs

from .workload import Job

WHOLE = ("stop", "length")
"""Ends after which nothing is missing."""


class Violation(AssertionError):
    """The promise is broken."""


@dataclass
class View:
    """The events of one request, put together; whoever delivers them in another order has broken it."""

    job: Job
    who: str
    durable: bool
    """Redis never forgets what it confirmed. Otherwise an early end may count less than was received."""
    tokens: list[int] = field(default_factory=list[int])
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    done: Done | None = None

    def take(self, event: Event) -> None:
        if self.done is not None:
            self.fail(f"an event after done: {type(event).__name__} at {event.seq}")
        if isinstance(event, Done):
            if event.seq != len(self.tokens) and not self._may_count_less(event):
                self.fail(f"done says {event.seq} tokens, there were {len(self.tokens)}")
            self.done = event
            return
        if (event.seq, event.pos) != (len(self.tokens), len(self.text)):
            self.fail(
                f"a delta at token {event.seq}, character {event.pos} "
                f"after token {len(self.tokens)}, character {len(self.text)}"
            )
        self.tokens += event.tokens
        self.text += event.text
        self.logprobs += event.logprobs or []

    def _may_count_less(self, done: Done) -> bool:
        return not self.durable and done.seq < len(self.tokens) and done.finish_reason not in WHOLE

    def check(self) -> None:
        """Everything that an ended request must show to anyone who followed it from the beginning."""
        job, done = self.job, self.done
        if done is None:
            self.fail("no done")
        expected = job.expected if job.interruption != "refused" else None
        reason = done.finish_reason
        if done.metadata != job.request.metadata:
            self.fail("other metadata")
        if expected is None:
            if (reason, done.error and done.error.code, self.tokens) != ("error", "invalid_request", []):
                self.fail(f"{reason} {done.error}")
            return
        allowed = {
            "none": {expected.finish_reason},
            "cancel": {expected.finish_reason, "cancelled"},
            "deadline": {expected.finish_reason, "expired"},
            "poison": {"error"},
        }[job.interruption]
        if reason not in allowed:
            self.fail(f"ended with {reason} {done.error}, not {sorted(allowed)}")
        if self.tokens != expected.tokens[: len(self.tokens)]:
            self.fail("other tokens")
        if expected.logprobs is not None and self.logprobs != expected.logprobs[: len(self.tokens)]:
            self.fail("other logprobs")
        if done.usage.completion_tokens != done.seq:
            self.fail(f"usage says {done.usage.completion_tokens} tokens of {done.seq}")
        if reason in WHOLE:
            self._check_whole()
        else:
            whole = text_of(self.tokens, job.request.stop)
            # An ending without a worker cannot say what was held back.
            if not whole.startswith(self.text.rstrip("\ufffd")):
                self.fail("other text")
        if job.interruption == "poison":
            self._check_poison(done)

    def _check_whole(self) -> None:
        expected = self.job.expected
        assert self.done is not None
        if len(self.tokens) != len(expected.tokens):
            self.fail(f"{len(self.tokens)} of {len(expected.tokens)} tokens")
        if self.text != expected.text:
            self.fail("other text")
        if self.done.usage.prompt_tokens != expected.prompt_tokens:
            self.fail("other prompt tokens")

    def _check_poison(self, done: Done) -> None:
        if done.error is None or done.error.code != "too_many_attempts":
            self.fail(f"poison ended with {done.error}")
        if len(self.tokens) > self.job.deadly_at:
            self.fail("tokens beyond the one that kills")

    def fail(self, problem: str) -> Never:
        job = self.job
        raise Violation(f"{job.request.id} ({job.interruption}), {self.who}: {problem}")


def view_of(job: Job, who: str, events: Iterable[Event]) -> View:
    view = View(job, who, durable=True)
    for event in events:
        view.take(event)
    return view


def check_piece(job: Job, who: str, event: Delta) -> None:
    """A delta out of context: its tokens and text are those of the uninterrupted run at their place."""
    expected = job.expected.tokens[event.seq : event.seq + len(event.tokens)]
    if event.tokens != expected:
        raise Violation(f"{job.request.id}, {who}: other tokens at {event.seq}")
    text = job.uncut_text[event.pos : event.pos + len(event.text)]
    if event.text != text and event.text.rstrip("\ufffd") != text[: len(event.text.rstrip("\ufffd"))]:
        raise Violation(f"{job.request.id}, {who}: other text at {event.pos}")
