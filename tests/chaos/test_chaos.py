"""A few kills and whatever else a seed brings; ``python -m tests.chaos`` does it at length."""

from pathlib import Path

import pytest
from redis_servers import BINARIES, Kind

from .faults import WEIGHTS, Fault
from .run import Plan, run

pytestmark = pytest.mark.anyio

EVERY_FAULT: dict[Fault, float] = {**dict.fromkeys(WEIGHTS, 1.0), "kill": 2.0, "power_loss": 0.0}


@pytest.mark.parametrize(
    ("server", "seed"),
    [
        pytest.param(kind, seed, marks=marks)
        for kind, seed, marks in zip(BINARIES, (29, 34), ((), pytest.mark.slow), strict=False)
    ],
)
async def test_nothing_is_lost_or_repeated(server: Kind, seed: int, tmp_path: Path) -> None:
    report = await run(
        Plan(seed=seed, kills=3, server=server, workers=2, concurrency=8, weights=EVERY_FAULT), tmp_path
    )
    assert report.violations == []
    assert report.faults["kill"] == 3
    assert report.faults.total() > 3
    assert report.requests >= 8


async def test_an_emptied_server_costs_no_request_that_is_submitted_again(tmp_path: Path) -> None:
    weights: dict[Fault, float] = {"kill": 1.0, "flush_all": 1.0}
    report = await run(
        Plan(seed=11, kills=2, fsync="everysec", workers=2, concurrency=8, weights=weights), tmp_path
    )
    assert report.violations == []
    assert report.faults["flush_all"] > 0
    assert report.resubmitted > 0


async def test_a_power_loss_without_fsync_costs_no_request_that_is_submitted_again(tmp_path: Path) -> None:
    weights: dict[Fault, float] = {"kill": 1.0, "power_loss": 1.0}
    report = await run(
        Plan(seed=8, kills=2, fsync="everysec", workers=2, concurrency=8, weights=weights), tmp_path
    )
    assert report.violations == []
    assert report.faults["power_loss"] > 0
