"""Metrics: what the serve loop observes, and what engine and broker count, for Prometheus to scrape."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..clients.protocol import FinishReason
from ..clients.queue_metrics import queue_families
from ..clients.queue_status import QueueStatus
from .broker.connection import ErrorKind
from .broker.counters import Counters
from .engine.engine import EngineStatus
from .engine.sequence import Sequence as EngineSequence
from .engine.step import Finished, Step
from .logs import about
from .tracing import Served

log = logging.getLogger(__name__)

_LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_WINDOW = 5.0
"""Seconds over which tokens per second are counted."""
_RECENT = 60.0
_MOST_RECENT = 256


class Telemetry:
    """Observes one worker, into ``registry``. Times are of the monotonic clock, in seconds.

    ``status``, ``counters`` and ``queues`` are read when somebody looks. ``ended`` is told of each request
    that ends or, with None, goes to another worker.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        model: str,
        version: str,
        status: Callable[[], EngineStatus],
        counters: Counters,
        queues: Callable[[], Sequence[QueueStatus]],
        ended: Callable[[Served, Finished | None], None] | None = None,
    ) -> None:
        self._tokens_per_second = 0.0
        self._streams: dict[str, Served] = {}
        self._ended = ended
        self._first_tokens: deque[tuple[float, float]] = deque(maxlen=_MOST_RECENT)
        self._window_start = time.monotonic()
        self._window_tokens = 0

        def histogram(name: str, description: str) -> Histogram:
            return Histogram(f"headrace_{name}_seconds", description, registry=registry, buckets=_LATENCIES)

        self._queue_wait = histogram("queue_wait", "From enqueueing to the first claim by a worker.")
        self._first_token = histogram("time_to_first_token", "From enqueueing to the first token.")
        self._inter_token = histogram("inter_token_latency", "Between tokens of one request.")
        self._step = histogram("step", "One iteration: scheduling, forward pass, sampling.")
        self._tokens = Counter("headrace_tokens", "Tokens computed.", ["kind"], registry=registry)
        self._prompt_tokens = self._tokens.labels("prefill")
        self._output_tokens = self._tokens.labels("output")
        self._preemptions = Counter(
            "headrace_preemptions", "Sequences whose blocks were taken back.", registry=registry
        )
        self._failed = Counter(
            "headrace_requests_failed",
            "Requests ended because computing them raised an exception.",
            registry=registry,
        )
        registry.register(_Reader(model, version, status, counters, queues))

    def recent_first_tokens(self) -> list[float]:
        """Seconds to the first token, of the last minute's requests; of the last 256, if they are more."""
        oldest = time.monotonic() - _RECENT
        return [seconds for moment, seconds in self._first_tokens if moment >= oldest]

    def joined(self, sequence: EngineSequence, waited_ms: int, trace: str | None) -> None:
        """A request was claimed, ``waited_ms`` after it was enqueued."""
        waited = waited_ms / 1000
        if sequence.epoch == 1:  # later claims come after another worker, not after the queue
            self._queue_wait.observe(waited)
        now = time.monotonic()
        self._streams[sequence.id] = Served(
            sequence.id, sequence.epoch, trace, now - waited, now, len(sequence.output)
        )

    def dropped(self, sequence_id: str) -> None:
        """A request left without an end that this worker would report."""
        self._leave(sequence_id, None)

    def stopped(self) -> None:
        """All that is still here goes to others."""
        for sequence_id in list(self._streams):
            self._leave(sequence_id, None)

    def stepped(self, step: Step, seconds: float) -> None:
        """One engine step has ended."""
        now = time.monotonic()
        if step.chunks:
            self._step.observe(seconds)
        # What is computed again of a resumed or preempted sequence is prefill, too.
        prefill = sum(chunk.length for chunk in step.chunks if chunk.length > 1 or not chunk.position)
        output = 0
        for delta in step.deltas:
            stream = self._streams.get(delta.sequence_id)
            if stream is None:
                continue
            known = delta.seq + len(delta.tokens)
            if known <= stream.output:  # only text is new
                continue
            output += known - stream.output
            stream.output = known
            if stream.last_token is None:
                stream.first_token = now
                if not stream.resumed:
                    self._first_token.observe(now - stream.enqueued)
                    self._first_tokens.append((now, now - stream.enqueued))
            else:
                self._inter_token.observe(now - stream.last_token)
            stream.last_token = now
        for finished in step.finished:
            self._leave(finished.sequence_id, finished)
        if prefill:
            self._prompt_tokens.inc(prefill)
        if output:
            self._output_tokens.inc(output)
        if step.preempted:
            self._preemptions.inc(len(step.preempted))
        if step.failed:
            self._failed.inc(len(step.failed))
        self._window_tokens += output
        self._roll(now)

    @property
    def tokens_per_second(self) -> float:
        """Over the last seconds; it falls to zero while nothing is computed."""
        self._roll(time.monotonic())
        return self._tokens_per_second

    def _leave(self, sequence_id: str, finished: Finished | None) -> None:
        served = self._streams.pop(sequence_id, None)
        if served is None:
            return
        _log_end(served, finished)
        if self._ended is not None:
            self._ended(served, finished)

    def _roll(self, now: float) -> None:
        elapsed = now - self._window_start
        if elapsed >= _WINDOW:
            self._tokens_per_second = self._window_tokens / elapsed
            self._window_start, self._window_tokens = now, 0


def _log_end(served: Served, finished: Finished | None) -> None:
    line = about(log, served.request_id)
    if finished is None:
        line.info("released: another worker continues it")
        return
    now = time.monotonic()
    queued = served.queued
    details = {
        "trace": served.trace,
        "epoch": served.epoch,
        "reason": finished.reason,
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": len(finished.tokens),
        "queued": None if queued is None else round(queued, 4),
        "seconds": round(now - served.enqueued, 4),
        "here": round(now - served.claimed, 4),
    }
    part = (
        f"{queued:.3f} of them queued" if queued is not None else f"{now - served.claimed:.3f} of them here"
    )
    line.info(
        "%s after %.3f s, %s; %d tokens of prompt, %d of output",
        finished.reason,
        now - served.enqueued,
        part,
        finished.prompt_tokens,
        len(finished.tokens),
        extra=details,
    )


class _Reader(Collector):
    """Reads gauges and totals that others keep, at the time of a scrape."""

    def __init__(
        self,
        model: str,
        version: str,
        status: Callable[[], EngineStatus],
        counters: Counters,
        queues: Callable[[], Sequence[QueueStatus]],
    ) -> None:
        self._labels = {"model": model, "version": version}
        self._status = status
        self._counters = counters
        self._queues = queues

    def collect(self) -> Iterator[Metric]:
        status, counters = self._status(), self._counters
        info = GaugeMetricFamily(
            "headrace_worker_info", "What this worker serves.", labels=list(self._labels)
        )
        info.add_metric(list(self._labels.values()), 1)
        yield info
        yield GaugeMetricFamily("headrace_running", "Sequences in the batch.", status.running)
        yield GaugeMetricFamily("headrace_waiting", "Sequences that wait for admission.", status.waiting)
        blocks = GaugeMetricFamily("headrace_kv_blocks", "Blocks of the KV cache.", labels=["state"])
        blocks.add_metric(["free"], status.blocks_free)
        blocks.add_metric(["used"], status.blocks_total - status.blocks_free)
        yield blocks
        prefix = CounterMetricFamily(
            "headrace_prefix_tokens", "Tokens looked up in the prefix cache.", labels=["result"]
        )
        prefix.add_metric(["hit"], status.prefix_hit_tokens)
        prefix.add_metric(["miss"], status.prefix_queried_tokens - status.prefix_hit_tokens)
        yield prefix
        yield from queue_families(self._queues())
        yield GaugeMetricFamily(
            "headrace_outbox_bytes", "Output that Redis has not confirmed.", counters.outbox_bytes
        )
        totals = {
            "redis_round_trips": ("Round trips to Redis.", counters.round_trips),
            "requests_taken": ("Entries taken from the queue.", counters.taken),
            "requests_redelivered": ("Entries taken over from other workers.", counters.redelivered),
            "requests_abandoned": (
                "Claims of requests whose worker had fallen silent.",
                counters.abandoned,
            ),
            "entries_put_back": ("Entries that somebody had deleted from a queue.", counters.put_back),
            "requests_resumed": ("Claims that went on after earlier output.", counters.resumed),
            "requests_invalid": ("Requests refused as invalid.", counters.invalid),
            "dead_letters": ("Requests given up on.", counters.dead_letters),
            "lost_claims": ("Requests that went to another worker.", counters.lost_claims),
            "logged_bytes": ("Bytes of events logged.", counters.bytes_logged),
            "relogged": ("Logs that Redis had lost the end of.", counters.relogged),
        }
        for name, (description, value) in totals.items():
            yield CounterMetricFamily(f"headrace_{name}", description, value)
        finished = CounterMetricFamily(
            "headrace_requests_finished", "Requests that ended here.", labels=["reason"]
        )
        for reason in get_args(FinishReason):  # from the start: a series that begins at 1 shows no increase
            finished.add_metric([reason], counters.finished[reason])
        yield finished
        retries = CounterMetricFamily("headrace_redis_retries", "Redis calls repeated.", labels=["kind"])
        for kind in get_args(ErrorKind):
            retries.add_metric([kind], counters.retries[kind])
        yield retries
