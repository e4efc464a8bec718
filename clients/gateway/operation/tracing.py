"""W3C trace context, which each request carries to its worker; spans with OpenTelemetry if enabled.

Without OpenTelemetry the client's context is passed on, or a new one is made, so that log lines and the
worker's spans can be joined.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

from ...spans import tracer

_PARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?\Z")


@dataclass(frozen=True, slots=True)
class Span:
    """One HTTP request: ``traceparent`` is its children's context; ``finish`` takes route and status."""

    traceparent: str
    finish: Callable[[str, int], None]


Begin = Callable[[str, str | None], Span]
"""Starts a span of an HTTP method, under the client's traceparent if there is one."""


def begin_unrecorded(method: str, incoming: str | None) -> Span:
    """A span that is not recorded."""
    del method
    match = _PARENT.match(incoming or "")
    known = match is not None and int(match[1], 16) and int(match[2], 16)
    trace, flags = (match[1], match[3]) if match and known else (token_hex(16), "00")
    return Span(f"00-{trace}-{token_hex(8)}-{flags}", lambda _route, _status: None)


def recorder() -> Begin:
    """A ``Begin`` whose spans OpenTelemetry records.

    Raises:
        ImportError: OpenTelemetry is not installed.
    """
    spans = tracer("headrace-gateway")
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    propagator = TraceContextTextMapPropagator()

    def begin(method: str, incoming: str | None) -> Span:
        parent = propagator.extract({"traceparent": incoming} if incoming else {})
        attributes = {"http.request.method": method}
        span = spans.start_span(method, parent, trace.SpanKind.SERVER, attributes)
        carrier: dict[str, str] = {}
        propagator.inject(carrier, trace.set_span_in_context(span))

        def finish(route: str, status: int) -> None:
            span.update_name(f"{method} {route}")
            span.set_attribute("http.route", route)
            span.set_attribute("http.response.status_code", status)
            if status >= 500:
                span.set_status(trace.StatusCode.ERROR)
            span.end()

        traceparent = carrier.get("traceparent") or begin_unrecorded(method, incoming).traceparent
        return Span(traceparent, finish)

    return begin
