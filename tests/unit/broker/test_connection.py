"""Errors sorted by what to do about them, and delays between tries."""

import anyio
import pytest
import redis.exceptions as errors

from headrace.worker.broker import connection
from headrace.worker.broker.connection import Backoff, error_kind, is_transient


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.ConnectionError("reset"), "connection"),
        (ConnectionResetError(), "connection"),
        (EOFError(), "connection"),
        (errors.TimeoutError("slow"), "timeout"),
        (errors.BusyLoadingError("Redis is loading the dataset in memory"), "loading"),
        (errors.ResponseError("BUSY Redis is busy running a script."), "busy"),
        (errors.ReadOnlyError("You can't write against a read only replica."), "readonly"),
        (errors.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "oom"),
        (errors.NoScriptError("No matching script."), "noscript"),
        (errors.MasterDownError("Link with MASTER is down"), "down"),
        (errors.ClusterDownError("The cluster is down"), "down"),
        (errors.ResponseError("MISCONF Redis is configured to save RDB snapshots"), "down"),
        (errors.ResponseError("NOREPLICAS Not enough good replicas to write."), "down"),
        (errors.NoPermissionError("User worker has no permissions"), "denied"),
        (errors.AuthenticationError("WRONGPASS invalid username-password pair"), "denied"),
        (errors.ResponseError("WRONGTYPE Operation against a key"), "other"),
        (errors.ResponseError("ERR something"), "other"),
    ],
)
def test_errors_are_sorted_by_kind(error: Exception, kind: str) -> None:
    assert error_kind(error) == kind
    assert is_transient(error) == (kind != "other")


@pytest.mark.anyio
async def test_delays_double_up_to_a_limit_and_start_over(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(connection.anyio, "sleep", sleep)
    backoff = Backoff()
    for _ in range(12):
        await backoff.sleep()
    for number, seconds in enumerate(slept):
        longest = min(5.0, 0.05 * 2**number)
        assert longest / 2 <= seconds <= longest
    assert len(set(slept)) == len(slept)
    backoff.reset()
    await backoff.sleep()
    assert slept[-1] <= 0.05
