"""Command-line options made of a settings class, so that each setting is written down once."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer

from ..config import Setting

T = TypeVar("T")


def with_settings(
    config: type[T], *, without: frozenset[str] = frozenset()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of ``config``, but for those in ``without``.

    The command's first parameter receives them as a dictionary; its further parameters stay as they are.
    A ``ValueError`` that the command raises is shown as a usage error.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        options = [option for option in _options(config) if option.name not in without]
        names = {option.name for option in options}
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        def run(**values: Any) -> None:
            settings = {name: values.pop(name) for name in list(values) if name in names}
            try:
                command(settings, **values)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from error

        parameters = [
            *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own),
            *options,
        ]
        run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def _options(config: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(config, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for field in fields(config):
        annotation, setting = get_args(hints[field.name])
        if not isinstance(setting, Setting):
            raise TypeError(f"{config.__name__}.{field.name} has no Setting")
        option = typer.Option(
            help=setting.help,
            envvar=f"HEADRACE_{field.name.upper()}",
            rich_help_panel=setting.group,
            show_default=field.default is not None,
        )
        parameters.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=Annotated[annotation, option],
            )
        )
    return parameters
