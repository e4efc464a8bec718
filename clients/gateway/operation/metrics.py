"""Prometheus metrics of a gateway. No label holds a tenant, a key or an id."""

from collections import Counter as Counts
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...overview import Overview
from ...queue_metrics import queue_families
from ..errors import ApiError
from ..streams.slots import StreamSlots

_LATENCIES: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Times are in seconds."""

    def __init__(self, slots: StreamSlots) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "headrace_gateway_http_requests",
            "HTTP requests completed, by route.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.duration = Histogram(
            "headrace_gateway_http_seconds",
            "From the request's head to the last byte of its response, streams included.",
            ["route"],
            registry=self.registry,
            buckets=_LATENCIES,
        )
        self.submitted = Counter(
            "headrace_gateway_requests_submitted",
            "Requests put on queues.",
            ["model"],
            registry=self.registry,
        )
        self.refused = Counter(
            "headrace_gateway_refused", "Error responses, by code.", ["code"], registry=self.registry
        )
        self.delivered_tokens = Counter(
            "headrace_gateway_tokens_delivered", "Tokens sent to clients of streams.", registry=self.registry
        )
        self.webhooks = Counter(
            "headrace_gateway_webhooks", "Webhook deliveries tried, by outcome.", ["outcome"],
            registry=self.registry,
        )  # fmt: skip
        self.batch_lines = Counter(
            "headrace_gateway_batch_lines", "Lines of batches ended, by outcome.", ["outcome"],
            registry=self.registry,
        )  # fmt: skip
        self._first_token = Histogram(
            "headrace_gateway_time_to_first_token_seconds",
            "From a streamed request's submission to its first token at the gateway.",
            registry=self.registry,
            buckets=_LATENCIES,
        )
        self.overview: Overview | None = None
        """Queues and workers at the last scrape; None if Redis could not be reached."""
        self.registry.register(_ScrapeCollector(slots, self))

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def count_error(self, error: ApiError) -> None:
        self.refused.labels(error.code or str(error.status)).inc()

    def exposition(self) -> bytes:
        return generate_latest(self.registry)


class _ScrapeCollector(Collector):
    """Gauges that are read at the time of a scrape."""

    def __init__(self, slots: StreamSlots, metrics: Metrics) -> None:
        self._slots = slots
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("headrace_gateway_streams", "Streams open now.", len(self._slots))
        overview = self._metrics.overview
        up = "Whether queues and workers could be read from Redis."
        yield GaugeMetricFamily("headrace_gateway_redis_up", up, overview is not None)
        if overview is None:
            return
        yield from queue_families(overview.queues)
        alive = Counts(worker.model for worker in overview.workers)
        workers = GaugeMetricFamily("headrace_workers", "Workers alive.", labels=["model"])
        for model in sorted({queue.model for queue in overview.queues} | set(alive)):
            workers.add_metric([model], alive[model])
        yield workers
