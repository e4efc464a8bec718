"""Queues as metrics: the same from workers and gateways, so that either tells while the other is away."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from .queue_status import QueueStatus


def queue_families(queues: Iterable[QueueStatus]) -> Iterator[Metric]:
    """Gauges by model and priority. Everyone who reads the same queue gives the same values."""
    labels = ["model", "priority"]
    waiting = GaugeMetricFamily("headrace_queue_waiting", "Requests with no worker yet.", labels=labels)
    taken = GaugeMetricFamily("headrace_queue_taken", "Requests that a worker has taken.", labels=labels)
    oldest = GaugeMetricFamily(
        "headrace_queue_oldest_seconds", "How long the longest has waited for a worker.", labels=labels
    )
    for queue in queues:
        waiting.add_metric([queue.model, queue.priority], queue.waiting)
        taken.add_metric([queue.model, queue.priority], queue.delivered)
        oldest.add_metric([queue.model, queue.priority], queue.oldest or 0.0)
    yield waiting
    yield taken
    yield oldest
