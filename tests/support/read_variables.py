"""Which environment variables a command of ``headrace`` reads."""

from typing import Any

import typer.main

from headrace.worker.cli.main import app


def variables_of(command: str) -> set[str]:
    """The names of all its settings' variables."""
    group: Any = typer.main.get_command(app)
    return {parameter.envvar for parameter in group.commands[command].params if parameter.envvar}
