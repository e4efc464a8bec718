"""Live figures: right while idle, for requests that another worker began, and after they have ended."""

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from headrace.worker import telemetry as module
from headrace.worker.broker.counters import Counters
from headrace.worker.engine.engine import EngineStatus
from headrace.worker.engine.sequence import Sequence
from headrace.worker.engine.step import Delta, Step
from headrace.worker.telemetry import Telemetry


class Time:
    """A clock that a test moves."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


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
    for _ in range(12):  # whoever looks, each second
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
