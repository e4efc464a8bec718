"""The ``headrace`` command and its subcommands. Imports no torch: ``--help`` is instant."""

import typer

from ...clients.cli.dead import dead
from ...clients.cli.gateway import gateway, gateway_key
from ...clients.cli.submit import submit
from ...clients.cli.top import top
from .demo import demo
from .model import model
from .up import up
from .worker import worker

app = typer.Typer(
    name="headrace",
    help=(
        "LLM inference from a Redis queue: push requests onto a stream, get tokens on a channel.\n\n"
        "[bold]headrace demo[/] shows it at work with a small real model; it needs no Redis and no GPU."
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)
app.command(rich_help_panel="See it")(demo)
app.command(rich_help_panel="Serve")(up)
app.command(rich_help_panel="Serve")(worker)
app.command(rich_help_panel="Serve")(gateway)
app.command("gateway-key", rich_help_panel="Serve")(gateway_key)
app.add_typer(model, name="model", rich_help_panel="Serve")
app.command(rich_help_panel="Use")(submit)
app.command(rich_help_panel="Use")(top)
app.add_typer(dead, name="dead", rich_help_panel="Use")


def main() -> None:
    """Entry point of the ``headrace`` command."""
    app()
