"""OpenTelemetry, for operators who ask for it: spans go out over OTLP as its ``OTEL_*`` variables say."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


def tracer(service: str) -> "Tracer":
    """The process's tracer, under ``service`` unless ``OTEL_SERVICE_NAME`` or the like says otherwise.

    A provider that is there already stays: whoever runs the process under ``opentelemetry-instrument``, or
    embeds it, has set up one. Spans are sent in batches by a thread, the last of them when the process ends.

    Raises:
        ImportError: the extra ``traces`` is not installed.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ImportError("traces: needs OpenTelemetry: pip install 'headrace[traces]'") from error
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        named = "OTEL_SERVICE_NAME" in os.environ or SERVICE_NAME in os.environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        provider = TracerProvider(resource=Resource.create(None if named else {SERVICE_NAME: service}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    return trace.get_tracer(service)
