"""``headrace worker``: the worker alone."""

from typing import Any

from ..config import WorkerConfig
from .running import run_until_stopped
from .settings_options import with_settings


@with_settings(WorkerConfig)
def worker(settings: dict[str, Any]) -> None:
    """Serve a model: take requests from Redis, publish tokens to Redis.

    Runs until SIGTERM or control-C; then it takes nothing more, finishes what it can within the grace time,
    and hands the rest back to other workers. A second signal hands back at once.
    """
    run_until_stopped(settings)
