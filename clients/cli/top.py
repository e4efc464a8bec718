"""``headrace top``: queues and workers, live."""

import json
import sys
from dataclasses import asdict
from typing import Annotated

import anyio
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..async_client import DEFAULT_URL, AsyncClient
from ..errors import HeadraceError, Unavailable
from ..overview import Monitor, Overview, WorkerStatus
from ..queue_status import QueueStatus
from .options import Model, Namespace, RedisUrl


def top(
    redis: RedisUrl = DEFAULT_URL,
    namespace: Namespace = "headrace",
    model: Model = None,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one snapshot as JSON and exit.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, max=60, help="Refresh interval in seconds.")] = 1.0,
) -> None:
    """Show workers (sequences, KV cache, tokens per second) and queues by priority.

    Live until Ctrl-C on a terminal, printed once elsewhere.

    In the queues, [bold]waiting[/] requests are with no worker yet, [bold]taken[/]
    ones are, and [bold]oldest[/] is how long one has been waiting.
    """

    async def run() -> None:
        try:
            client = AsyncClient(redis, namespace=namespace)
            monitor = Monitor(client.connection, client.keys, model)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        async with client:
            if as_json:
                overview = await monitor.look()
                sys.stdout.write(json.dumps(_as_record(overview)) + "\n")
            elif once or not Console().is_terminal:
                Console().print(_page(await monitor.look()))
            else:
                await _show_live(monitor, interval)

    try:
        anyio.run(run)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    except HeadraceError as error:
        typer.secho(f"headrace: {error}", err=True, fg="red")
        raise typer.Exit(1) from None


async def _show_live(monitor: Monitor, interval: float) -> None:
    page: RenderableType = Text("looking ...")
    with Live(page, screen=True, auto_refresh=False) as live:
        while True:
            try:
                page = _page(await monitor.look())
                live.update(page, refresh=True)
            except Unavailable as error:
                live.update(Group(Text(str(error), style="bold red"), page), refresh=True)
            await anyio.sleep(interval)


def _page(overview: Overview) -> RenderableType:
    parts: list[RenderableType] = [_workers(overview.workers), Text(), _queues(overview.queues)]
    if not overview.complete:
        parts.append(Text("Still looking through the server's keys; there may be more.", style="dim"))
    return Group(*parts)


def _workers(workers: list[WorkerStatus]) -> RenderableType:
    if not workers:
        return Text("No worker is alive.", style="yellow")
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for name in ("worker", "model"):
        table.add_column(name, overflow="fold")
    for name in ("running", "waiting"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("KV cache", no_wrap=True)
    for name in ("tokens/s", "up"):
        table.add_column(name, justify="right", no_wrap=True)
    for worker in workers:
        cache = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=1.0, completed=worker.cache_use, width=8)
        cache.add_row(bar, f"{worker.cache_use:4.0%} of {worker.blocks_total}")
        table.add_row(
            worker.name,
            worker.model,
            str(worker.running),
            str(worker.waiting),
            cache,
            f"{worker.tokens_per_second:,.1f}",
            _duration(worker.uptime),
        )
    if len(workers) > 1:
        running = sum(worker.running for worker in workers)
        waiting = sum(worker.waiting for worker in workers)
        speed = sum(worker.tokens_per_second for worker in workers)
        total = ("all", "", str(running), str(waiting), "", f"{speed:,.1f}", "")
        table.add_row(*total, style="bold")
    return table


def _queues(queues: list[QueueStatus]) -> RenderableType:
    if not queues:
        return Text("No queue.", style="dim")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("queue", no_wrap=True)
    table.add_column("priority", no_wrap=True)
    for name in ("waiting", "taken", "oldest"):
        table.add_column(name, justify="right", no_wrap=True)
    model = None
    for queue in queues:
        table.add_row(
            "" if queue.model == model else queue.model,
            queue.priority,
            str(queue.waiting),
            str(queue.delivered),
            _duration(queue.oldest),
        )
        model = queue.model
    return table


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} d"


def _as_record(overview: Overview) -> dict[str, object]:
    return {
        "workers": [asdict(worker) | {"cache_use": worker.cache_use} for worker in overview.workers],
        "queues": [asdict(queue) for queue in overview.queues],
        "complete": overview.complete,
    }
