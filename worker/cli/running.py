"""Running a worker from a command: log lines set up, failures told in a sentence."""

import gc
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import typer

from ..config import WorkerConfig
from ..logs import configure
from ..process import prepare_process
from .requirements import needs

if TYPE_CHECKING:
    from ..assembly import Assembly


def run_until_stopped(settings: dict[str, Any]) -> None:
    """Run a worker until it is told to stop.

    Raises:
        typer.Exit: with status 1, after saying what is wrong.
        ValueError: a setting that is out of range.
    """
    needs("worker", "torch", "transformers", "tokenizers", "prometheus_client")
    config = WorkerConfig(**settings)
    if config.traces:
        needs("traces", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
    configure(config.log_format, config.log_level)
    prepare_process()
    from ..app import run_worker

    run(partial(run_worker, config, assemble=_assemble_for_good))


def _assemble_for_good(config: WorkerConfig) -> "Assembly":
    """Assemble, and let the garbage collector pass over what is there by then: it stays until the end.

    The libraries and the model are hundreds of thousands of objects. Looking through them takes a second,
    which every stream would wait for.
    """
    from ..assembly import assemble

    assembly = assemble(config)
    gc.collect()
    gc.freeze()
    return assembly


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run an async command; what the user or a device did wrong ends it with a line and status 1."""
    from ..engine.errors import DeviceFailure, OutOfMemory, WorkerFault
    from ..model.errors import UnservableModelError

    try:
        anyio.run(main)
    except* (UnservableModelError, ValueError, OSError, OutOfMemory, DeviceFailure, WorkerFault) as group:
        for error in _leaves(group):
            typer.echo(f"headrace: {error}", err=True)
        raise typer.Exit(1) from None


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    return [
        leaf
        for error in group.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]
