"""Options that the commands share."""

from typing import Annotated

import typer

CONNECTION = "Where"

RedisUrl = Annotated[
    str,
    typer.Option(
        "--redis",
        envvar="HEADRACE_REDIS",
        help="Redis or Valkey URL: redis, rediss (TLS), unix, redis+sentinel or redis+cluster.",
        metavar="URL",
        rich_help_panel=CONNECTION,
    ),
]
Namespace = Annotated[
    str,
    typer.Option(
        envvar="HEADRACE_NAMESPACE",
        help="Prefix of all Redis keys; the same as the workers'.",
        metavar="NAME",
        rich_help_panel=CONNECTION,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        envvar="HEADRACE_SERVED_NAME",
        help="Served model name. Optional while workers of exactly one model are alive.",
        metavar="NAME",
        show_default=False,
        rich_help_panel=CONNECTION,
    ),
]
