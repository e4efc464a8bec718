"""Trace context (W3C): every request carries one to its worker. Spans by OpenTelemetry only if asked for.

Without OpenTelemetry a caller's context is passed on, or a fresh one is made, so that log lines and the
worker's spans can be joined; that costs a few random bytes.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

_PARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?\Z")


@dataclass(frozen=True, slots=True)
class Span:
    """One HTTP request: ``traceparent`` names it to whoever works for it; ``finish`` takes the status."""

    traceparent: str
    finish: Callable[[int], None]


Begin = Callable[[str, str | None], Span]
"""Begins a span of a name, under the caller's traceparent if there is one."""


def begin_unrecorded(name: str, incoming: str | None) -> Span:
    """A span that nobody records."""
    del name
    match = _PARENT.match(incoming or "")
    known = match is not None and int(match[1], 16) and int(match[2], 16)
    trace, flags = (match[1], match[3]) if match and known else (token_hex(16), "00")
    return Span(f"00-{trace}-{token_hex(8)}-{flags}", lambda _status: None)


def recorder() -> Begin:
    """Begins spans that the process's OpenTelemetry records, as it is configured (``OTEL_*``).

    Raises:
        ImportError: opentelemetry-api is not installed.
    """
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    tracer = trace.get_tracer("headrace.gateway")
    propagator = TraceContextTextMapPropagator()

    def begin(name: str, incoming: str | None) -> Span:
        parent = propagator.extract({"traceparent": incoming} if incoming else {})
        span = tracer.start_span(name, parent, kind=trace.SpanKind.SERVER)
        carrier: dict[str, str] = {}
        propagator.inject(carrier, trace.set_span_in_context(span))

        def finish(status: int) -> None:
            span.set_attribute("http.response.status_code", status)
            if status >= 500:
                span.set_status(trace.StatusCode.ERROR)
            span.end()

        unrecorded = carrier.get("traceparent") or begin_unrecorded(name, incoming).traceparent
        return Span(unrecorded, finish)

    return begin
