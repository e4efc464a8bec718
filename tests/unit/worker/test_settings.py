"""What is wrong with a worker's settings is said before a model is loaded."""

from typing import Any

import pytest

from headrace.worker.app import run_worker
from headrace.worker.assembly import Assembly
from headrace.worker.config import WorkerConfig

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"redis": "http://localhost"}, "scheme"),
        ({"redis": "redis+sentinel://localhost"}, "Sentinel URL must end in /SERVICE"),
        ({"redis": "redis+cluster://localhost/3"}, "a cluster has no databases"),
        ({"name": "two words"}, "name: must match"),
        ({"namespace": "a{b"}, "namespace"),
    ],
)
async def test_settings_that_the_broker_cannot_use(wrong: dict[str, Any], problem: str) -> None:
    def load(_: WorkerConfig) -> Assembly:
        raise AssertionError("the model was loaded")

    with pytest.raises(ValueError, match=problem):
        await run_worker(WorkerConfig(model="m", **wrong), assemble=load)
