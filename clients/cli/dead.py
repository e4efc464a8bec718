"""``headrace dead``: requests that workers gave up on."""

import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..async_client import DEFAULT_URL, AsyncClient
from ..dead_letters import DeadLetter, DeadLetters, DeadLetterUnusable
from ..errors import HeadraceError
from .options import Namespace, RedisUrl

dead = typer.Typer(
    help="List, show, retry and drop dead letters: requests that workers gave up on.", no_args_is_help=True
)

ModelName = Annotated[
    str, typer.Option(envvar="HEADRACE_SERVED_NAME", metavar="NAME", help="Served name of the model.")
]
LetterId = Annotated[str, typer.Argument(metavar="ID", help="Id of the dead letter, or of its request.")]


@dead.command("list")
def list_letters(
    model: ModelName,
    redis: RedisUrl = DEFAULT_URL,
    namespace: Namespace = "headrace",
    count: Annotated[
        int, typer.Option(min=1, max=10_000, help="Maximum number of dead letters to list, newest first.")
    ] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON Lines.")] = False,
) -> None:
    """List dead letters, newest first."""

    async def show(letters: DeadLetters) -> None:
        found = await letters.newest(count)
        if as_json:
            for letter in found:
                typer.echo(json.dumps(_as_record(letter)))
        elif not found:
            typer.echo(f"No dead letters of {model}.")
        else:
            Console().print(_table(found))

    _run(show, redis, namespace, model)


@dead.command("show")
def show_letter(
    letter_id: LetterId, model: ModelName, redis: RedisUrl = DEFAULT_URL, namespace: Namespace = "headrace"
) -> None:
    """Show one dead letter with its request, prompt included, as JSON."""

    async def show(letters: DeadLetters) -> None:
        letter = await _found(letters, letter_id)
        record = _as_record(letter)
        try:
            record["request"] = letter.request().model_dump(mode="json", exclude_defaults=True)
        except DeadLetterUnusable as error:
            record["invalid"] = str(error)
            record["bytes"] = letter.body.hex()
        typer.echo(json.dumps(record, indent=2, ensure_ascii=False, default=str))

    _run(show, redis, namespace, model)


@dead.command("retry")
def retry_letter(
    letter_id: LetterId, model: ModelName, redis: RedisUrl = DEFAULT_URL, namespace: Namespace = "headrace"
) -> None:
    """Put a dead letter's request on the queue again, under the same id, and drop the letter."""

    async def retry(letters: DeadLetters) -> None:
        request = await letters.retry(await _found(letters, letter_id))
        typer.echo(f"Enqueued {request.id} again.")

    _run(retry, redis, namespace, model)


@dead.command("drop")
def drop_letter(
    letter_id: LetterId, model: ModelName, redis: RedisUrl = DEFAULT_URL, namespace: Namespace = "headrace"
) -> None:
    """Delete a dead letter."""

    async def drop(letters: DeadLetters) -> None:
        letter = await _found(letters, letter_id)
        await letters.drop(letter)
        typer.echo(f"Dropped {letter.id}.")

    _run(drop, redis, namespace, model)


def _run(command: Callable[[DeadLetters], Awaitable[None]], url: str, namespace: str, model: str) -> None:
    async def run() -> None:
        try:
            client = AsyncClient(url, namespace=namespace)
            letters = DeadLetters(client.connection, client.keys, model)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        async with client:
            await command(letters)

    try:
        anyio.run(run)
    except (HeadraceError, DeadLetterUnusable) as error:
        typer.secho(f"headrace: {error}", err=True, fg="red")
        raise typer.Exit(1) from None


async def _found(letters: DeadLetters, letter_id: str) -> DeadLetter:
    letter = await letters.get(letter_id)
    if letter is None:
        raise DeadLetterUnusable(f"no dead letter {letter_id}")
    return letter


def _table(letters: list[DeadLetter]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("id", "given up", "attempts", "request", "error"):
        table.add_column(heading, overflow="fold", justify="right" if heading == "attempts" else "left")
    for letter in letters:
        record = _as_record(letter)
        given_up = datetime.fromtimestamp(letter.time_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(
            letter.id,
            given_up,
            str(letter.attempts),
            Text(str(record["request_id"] or "-")),
            Text(letter.error),
        )
    return table


def _as_record(letter: DeadLetter) -> dict[str, object]:
    try:
        request_id = letter.request().id
    except DeadLetterUnusable:
        request_id = None
    return {
        "id": letter.id,
        "request_id": request_id,
        "error": letter.error,
        "attempts": letter.attempts,
        "given_up": letter.time_ms,
    }
