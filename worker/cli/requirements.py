"""What a command needs installed, said in a sentence instead of a traceback."""

from importlib.util import find_spec

import typer


def needs(extra: str, *modules: str) -> None:
    """End with an explanation unless all ``modules`` can be imported."""
    missing = [module for module in modules if not _is_there(module)]
    if missing:
        typer.echo(
            f"This needs {', '.join(missing)}, which is not installed: pip install 'headrace[{extra}]'",
            err=True,
        )
        raise typer.Exit(1)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package it would be in
        return False
