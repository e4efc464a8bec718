"""Options that the commands share."""

from typing import Annotated

import typer

RedisUrl = Annotated[
    str,
    typer.Option(
        "--redis",
        envvar="HEADRACE_REDIS",
        help="Redis or Valkey: redis://, rediss:// (TLS) or unix:// URL, with user, password and database.",
        metavar="URL",
    ),
]
Namespace = Annotated[
    str,
    typer.Option(envvar="HEADRACE_NAMESPACE", help="Prefix of all keys, as for the workers.", metavar="NAME"),
]
Model = Annotated[
    str | None,
    typer.Option(
        envvar="HEADRACE_SERVED_NAME",
        help="Served name of the model. Not needed while exactly one model's workers are alive.",
        metavar="NAME",
        show_default=False,
    ),
]
