"""Live figures: right while idle, for requests that another worker began, and after they have ended."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from headrace.worker import telemetry as module
from headrace.worker import tracing
from headrace.worker.broker.counters import Counters
from headrace.worker.engine.engine import EngineStatus
from headrace.worker.engine.iteration import Chunk
from headrace.worker.engine.sequence import Sequence
from headrace.worker.engine.step import Delta, Finished, Step
from headrace.worker.telemetry import Telemetry


class Time:
    """A clock that a test moves."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    clock = Time()
    monkeypatch.setattr(module, "time", clock)
    yield clock


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def telemetry(clock: Time, registry: CollectorRegistry) -> Telemetry:
    del clock
    return Telemetry(registry, "m", "1", _status, Counters(), list)


def _status() -> EngineStatus:
    return EngineStatus(0, 0, 8, 8, 0, 0)


def delta(name: str, epoch: int, position: int, tokens: list[int]) -> Step:
    return Step(deltas=[Delta(name, epoch, position, 0, tokens, "")])


def test_the_rate_falls_to_zero_while_nothing_is_computed(telemetry: Telemetry, clock: Time) -> None:
    telemetry.joined(Sequence("a", [1], epoch=1), 0, None)
    for position in range(60):
        clock.now += 0.1
        telemetry.stepped(delta("a", 1, position, [7]), 0.1)
    assert telemetry.tokens_per_second == pytest.approx(10, rel=0.1)
    for _ in range(12):  # read once a second
        clock.now += 1
        telemetry.tokens_per_second  # noqa: B018
    assert telemetry.tokens_per_second == 0


@pytest.mark.parametrize(
    ("epoch", "output", "first_tokens", "waits"),
    [(1, [], 1, 1), (2, [], 1, 0), (2, [5, 6], 0, 0)],
)
def test_first_tokens_and_waits_are_the_requests_own(
    telemetry: Telemetry,
    registry: CollectorRegistry,
    epoch: int,
    output: list[int],
    first_tokens: int,
    waits: int,
) -> None:
    telemetry.joined(Sequence("a", [1], epoch=epoch, output=list(output)), 70_000, None)
    telemetry.stepped(delta("a", epoch, len(output), [7]), 0.1)

    def count(name: str) -> float | None:
        return registry.get_sample_value(f"headrace_{name}_seconds_count")

    assert count("time_to_first_token") == first_tokens
    assert count("queue_wait") == waits
    assert len(telemetry.recent_first_tokens()) == first_tokens


def finish(name: str, epoch: int) -> Step:
    return Step(finished=[Finished(name, epoch, "stop", [7], "", None, 1, 0)])


@pytest.mark.parametrize(
    ("epoch", "queued", "part"), [(1, 70.0, "70.000 of them queued"), (2, None, "0.500 of them here")]
)
def test_what_another_worker_had_was_not_queued_all_the_time(
    telemetry: Telemetry,
    clock: Time,
    caplog: pytest.LogCaptureFixture,
    epoch: int,
    queued: float | None,
    part: str,
) -> None:
    caplog.set_level(logging.INFO)
    telemetry.joined(Sequence("a", [1], epoch=epoch), 70_000, None)
    clock.now += 0.5
    telemetry.stepped(finish("a", epoch), 0.1)
    (line,) = caplog.records
    said: dict[str, Any] = vars(line)
    assert (said["queued"], said["seconds"], said["here"]) == (queued, 70.5, 0.5)
    assert f"stop after 70.500 s, {part};" in line.getMessage()


def test_only_a_first_claim_has_a_span_of_the_queue(clock: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "time", clock)
    traces = tracing.Traces(tracers.get_tracer("t"), "m", "w")
    seconds: dict[int, dict[str, float]] = {}
    for epoch in (1, 2):
        served = tracing.Served("a", epoch, None, clock.now - 70, clock.now)
        clock.now += 2
        traces.ended(served, Finished("a", epoch, "stop", [7], "", None, 1, 0))
        spans = exporter.get_finished_spans()
        exporter.clear()
        seconds[epoch] = {span.name: ((span.end_time or 0) - (span.start_time or 0)) / 1e9 for span in spans}
    assert seconds[1] == pytest.approx({"headrace.queue": 70, "headrace.prefill": 2, "headrace.request": 72})
    assert seconds[2] == pytest.approx({"headrace.prefill": 2, "headrace.request": 2})


def test_a_token_that_comes_along_with_text_once_more_is_counted_once(
    telemetry: Telemetry, registry: CollectorRegistry, clock: Time
) -> None:
    telemetry.joined(Sequence("a", [1], epoch=2, output=[5]), 0, None)
    for position in (1, 2, 2):
        clock.now += 1
        telemetry.stepped(delta("a", 2, position, [7]), 0.1)
    assert registry.get_sample_value("headrace_tokens_total", {"kind": "output"}) == 2
    assert registry.get_sample_value("headrace_inter_token_latency_seconds_count") == 1


def test_what_is_computed_again_of_a_resumed_sequence_is_prefill(
    telemetry: Telemetry, registry: CollectorRegistry
) -> None:
    resumed = Sequence("a", [1] * 20, epoch=2, output=[5] * 10)
    telemetry.joined(resumed, 0, None)
    telemetry.stepped(Step(chunks=[Chunk(resumed, 0, 30, True, 10, 4)]), 0.1)
    telemetry.stepped(Step(chunks=[Chunk(resumed, 30, 1, True, 11, 4)]), 0.1)
    assert registry.get_sample_value("headrace_tokens_total", {"kind": "prefill"}) == 30
