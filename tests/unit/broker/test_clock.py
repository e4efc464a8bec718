"""The worker's idea of Redis's time."""

import time

import pytest

from headrace.worker.broker.clock import Clock


@pytest.mark.parametrize("hours", [2, -2], ids=["ahead", "behind"])
def test_the_host_has_no_say_and_before_redis_has_told_no_moment_has_come(
    monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    wrong = time.time() + hours * 3600
    monkeypatch.setattr(time, "time", lambda: wrong)
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    clock = Clock()
    assert clock.now_ms() == 0
    clock.sync(1_800_000_000_000)
    monkeypatch.setattr(time, "monotonic", lambda: 1002.5)
    assert clock.now_ms() == 1_800_000_002_500
