"""``headrace submit``: one prompt to the terminal, or a file of requests to a file of results."""

import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, cast

import anyio
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..async_client import DEFAULT_URL, AsyncClient
from ..errors import HeadraceError
from ..overview import Monitor
from ..protocol import Done, RequestError
from ..submission import RequestFields
from .batch import run_batch
from .options import Model, Namespace, RedisUrl
from .record import as_line, result_record

_FILES = "With a file"
_REQUEST = "Request"
_TIME_TO_CANCEL = 5.0
_UNPRINTABLE = {code: "\ufffd" for code in [*range(32), *range(127, 160)] if code not in (9, 10)}


def submit(
    prompt: Annotated[
        str | None,
        typer.Argument(help="Prompt text; '-' or no argument reads standard input.", show_default=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON line instead of streaming its text.")
    ] = False,
    file: Annotated[
        str | None,
        typer.Option(
            help="JSON Lines file of requests to submit instead of a prompt; '-' is standard input.",
            metavar="PATH",
            show_default=False,
            rich_help_panel=_FILES,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="File for the results, as JSON Lines. Default: standard output.",
            metavar="PATH",
            show_default=False,
            rich_help_panel=_FILES,
        ),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(min=1, help="Maximum number of requests in flight at a time.", rich_help_panel=_FILES),
    ] = 64,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Maximum number of tokens to generate. Default: 256.", rich_help_panel=_REQUEST),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Sampling temperature. 0, the default, is greedy decoding.", rich_help_panel=_REQUEST
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Nucleus sampling: sample from the smallest set of tokens whose probability reaches P.",
            rich_help_panel=_REQUEST,
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            help="Top-k sampling: sample from the K most likely tokens. 0 turns it off.",
            rich_help_panel=_REQUEST,
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            help="Min-p sampling: leave out tokens less likely than P times the most likely one.",
            rich_help_panel=_REQUEST,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Random seed; a seed gives the same tokens each time.", rich_help_panel=_REQUEST),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="Stop sequence; the text ends before it. Repeatable.", rich_help_panel=_REQUEST),
    ] = None,
    priority: Annotated[
        Literal["high", "normal", "low"] | None,
        typer.Option(help="Queue priority. Default: normal.", rich_help_panel=_REQUEST),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            help="Tenant that the request is counted for; workers are shared fairly between tenants.",
            rich_help_panel=_REQUEST,
        ),
    ] = None,
    redis: RedisUrl = DEFAULT_URL,
    namespace: Namespace = "headrace",
    model: Model = None,
) -> None:
    """Submit a prompt and stream its text, or a file of requests and collect their results.

    [bold]headrace submit "Why is the sky blue?"[/]
    prints tokens as the worker makes them. Ctrl-C cancels the request.

    [bold]headrace submit --file requests.jsonl --output results.jsonl[/]
    takes one request a line, an object with the fields of a request
    (prompt, messages or tokens; max_tokens, ...), and writes one result
    a line, each as soon as it is there: line (the request's, from 1), id,
    text, tokens, finish_reason, usage, timings, and error where it failed.
    Request options are defaults for lines that do not say otherwise.

    Exit status: 0 all completed, 1 something failed, 2 wrong usage,
    130 interrupted.
    """
    fields = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "seed": seed,
        "stop": stop or None,
        "priority": priority,
        "tenant": tenant,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    if file is not None and prompt is not None:
        raise typer.BadParameter("give a prompt or --file, not both", param_hint="--file")
    if output is not None and file is None:
        raise typer.BadParameter("needs --file", param_hint="--output")

    async def run() -> bool:
        try:
            client = AsyncClient(redis, namespace=namespace)
            monitor = Monitor(client.connection, client.keys, model)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        async with client:
            client.model = await _served_model(monitor, model)
            if file is not None:
                return await _submit_file(client, file, output, given, concurrency)
            return await _submit_prompt(client, _prompt_text(prompt), given, as_json)

    try:
        succeeded = anyio.run(run)
    except KeyboardInterrupt:
        typer.echo(err=True)
        raise typer.Exit(130) from None
    except RequestError as error:
        raise typer.BadParameter(str(error)) from None
    except (HeadraceError, OSError) as error:
        typer.secho(f"headrace: {error}", err=True, fg="red")
        raise typer.Exit(1) from None
    raise typer.Exit(0 if succeeded else 1)


async def _served_model(monitor: Monitor, model: str | None) -> str:
    """``model``, or the one that workers serve now."""
    overview = await monitor.look()
    alive = sorted({worker.model for worker in overview.workers})
    if model is None:
        if len(alive) != 1:
            there = f"workers serve {', '.join(alive)}" if alive else "no worker is alive"
            raise typer.BadParameter(f"say which: {there}", param_hint="--model")
        return alive[0]
    if not alive and overview.complete:
        typer.secho(f"headrace: no worker of {model} is alive yet; waiting", err=True, fg="yellow")
    return model


async def _submit_prompt(client: AsyncClient, prompt: str, fields: dict[str, Any], as_json: bool) -> bool:
    handle = await client.submit(prompt, **cast(RequestFields, fields))
    try:
        if not as_json:
            async for event in handle:
                if not isinstance(event, Done):
                    _show(event.text)
            sys.stdout.write("\n")
        result = await handle.result()
        if as_json:
            sys.stdout.write(as_line(result_record(result)))
    except BaseException:
        with anyio.move_on_after(_TIME_TO_CANCEL, shield=True):
            await handle.cancel()
        raise
    if not result.completed:
        reason = f"{result.error.code}: {result.error.message}" if result.error else result.finish_reason
        typer.secho(f"headrace: the request ended early: {reason}", err=True, fg="red")
    return result.completed


async def _submit_file(
    client: AsyncClient, file: str, output: Path | None, defaults: dict[str, Any], concurrency: int
) -> bool:
    failed = 0
    with _opened(file, output) as (lines, results), _progress() as progress:
        task = progress.add_task("requests", total=_count_lines(file), failed=0)

        def write(record: dict[str, Any]) -> None:
            nonlocal failed
            failed += record.get("finish_reason") not in ("stop", "length")
            results.write(as_line(record))
            results.flush()
            progress.update(task, advance=1, failed=failed)

        await run_batch(client, lines, defaults, concurrency, write)
    return not failed


@contextmanager
def _opened(file: str, output: Path | None) -> Generator[tuple[TextIO, TextIO]]:
    with ExitStack() as stack:
        # A line that is not UTF-8 fails by itself, with its field named.
        lines = (
            _standard_input()
            if file == "-"
            else stack.enter_context(Path(file).open(encoding="utf-8", errors="surrogateescape"))
        )
        results = sys.stdout if output is None else stack.enter_context(output.open("w", encoding="utf-8"))
        yield lines, results


def _prompt_text(prompt: str | None) -> str:
    if prompt not in (None, "-"):
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise typer.BadParameter("give one, or --file, or text on standard input", param_hint="PROMPT")
    return _standard_input().read()


def _standard_input() -> TextIO:
    """In UTF-8; what is none is found where the request is checked, and told by its field."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    return sys.stdin


def _show(text: str) -> None:
    # A model may write anything, escape sequences included; a terminal obeys them.
    sys.stdout.write(text.translate(_UNPRINTABLE) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def _count_lines(file: str) -> int | None:
    """How many requests there are, where that can be told without using them up."""
    if not Path(file).is_file():
        return None
    with Path(file).open("rb") as lines:
        return sum(1 for line in lines if line.strip())


@contextmanager
def _progress() -> Generator[Progress]:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield progress
