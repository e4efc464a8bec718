"""Options that the commands share."""

from typing import Annotated

import typer

CONNECTION = "Where"

RedisUrl = Annotated[
    str,
    typer.Option(
        "--redis",
        envvar="HEADRACE_REDIS",
        help="Redis or Valkey: URL of redis, rediss (TLS), unix, redis+sentinel or redis+cluster.",
        metavar="URL",
        rich_help_panel=CONNECTION,
    ),
]
Namespace = Annotated[
    str,
    typer.Option(
        envvar="HEADRACE_NAMESPACE",
        help="Prefix of all keys, as for the workers.",
        metavar="NAME",
        rich_help_panel=CONNECTION,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        envvar="HEADRACE_SERVED_NAME",
        help="Served name of the model. Not needed while exactly one model's workers are alive.",
        metavar="NAME",
        show_default=False,
        rich_help_panel=CONNECTION,
    ),
]
