"""Spans of a request at its worker: queue wait, prefill, decode, in the trace that the request came with.

They are made when the request ends, of moments noted on the way, so that an iteration does nothing for them.
Attributes are named as OpenTelemetry's conventions for generative AI name them.
"""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .engine.step import Finished

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


@dataclass(slots=True)
class Served:
    """One claim of a request. Moments are of the monotonic clock, in seconds."""

    request_id: str
    epoch: int
    trace: str | None
    """W3C traceparent."""
    enqueued: float
    claimed: float
    output: int = 0
    """Output tokens so far, those of earlier claims included."""
    resumed: bool = field(init=False)
    """It goes on after output of an earlier claim: the first token here is not the request's first."""
    first_token: float | None = None
    last_token: float | None = None

    def __post_init__(self) -> None:
        self.resumed = self.output > 0

    @property
    def queued(self) -> float | None:
        """Seconds in the queue; None for later claims, before which the request was another worker's."""
        return self.claimed - self.enqueued if self.epoch == 1 else None


class Traces:
    """Records requests as they end, for one worker."""

    def __init__(self, tracer: "Tracer", model: str, worker: str) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._model = model
        self._worker = worker
        self._propagator = TraceContextTextMapPropagator()

    def ended(self, served: Served, finished: Finished | None) -> None:
        """A claim is over: with the request, or (None) because another worker has it."""
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        now = time.monotonic()
        now_ns = time.time_ns()  # noqa: TID251  spans of all services are by their hosts' clocks

        def at(moment: float) -> int:
            return now_ns - int((now - moment) * 1e9)

        attributes: dict[str, str | int] = {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": self._model,
            "headrace.request.id": served.request_id,
            "headrace.epoch": served.epoch,
            "headrace.worker": self._worker,
        }
        parent = self._propagator.extract({"traceparent": served.trace} if served.trace else {})
        start = served.claimed if served.queued is None else served.enqueued
        request = self._tracer.start_span(
            "headrace.request", parent, SpanKind.CONSUMER, attributes, start_time=at(start)
        )
        if finished is None:
            request.set_status(StatusCode.ERROR, "claim lost")
        else:
            request.set_attribute("gen_ai.response.finish_reasons", [finished.reason])
            request.set_attribute("gen_ai.usage.input_tokens", finished.prompt_tokens)
            request.set_attribute("gen_ai.usage.output_tokens", len(finished.tokens))
            request.set_attribute("headrace.usage.cached_tokens", finished.cached_tokens)
            if finished.reason == "error":
                request.set_status(StatusCode.ERROR, finished.error_code)
        phases = [("headrace.prefill", served.claimed, served.first_token or now)]
        if served.queued is not None:
            phases.insert(0, ("headrace.queue", served.enqueued, served.claimed))
        if served.first_token is not None:
            phases.append(("headrace.decode", served.first_token, now))
        within = set_span_in_context(request)
        for name, start, end in phases:
            self._tracer.start_span(name, within, start_time=at(start)).end(at(end))
        request.end(now_ns)
