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
from ..overview import Monitor, Overview, QueueStatus, WorkerStatus
from .options import Model, Namespace, RedisUrl

_TEXTS = ("worker", "model", "KV cache", "version")


def top(
    redis: RedisUrl = DEFAULT_URL,
    namespace: Namespace = "headrace",
    model: Model = None,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print once, as JSON, and exit.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds between looks.")] = 1.0,
) -> None:
    """Show queues by priority, and workers: running and waiting sequences, KV cache, tokens per second.

    Live on a terminal until Ctrl-C; printed once where standard output is none. In the queues,
    [bold]waiting[/] requests are with no worker yet and [bold]taken[/] ones are; [bold]oldest[/] is the
    longest wait so far.
    """

    async def run() -> None:
        try:
            client = AsyncClient(redis, namespace=namespace)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        async with client:
            monitor = Monitor(client.connection, client.keys, model)
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
    for name in ("worker", "model", "running", "waiting", "KV cache", "blocks", "tokens/s", "up", "version"):
        table.add_column(name, justify="left" if name in _TEXTS else "right", no_wrap=True)
    for worker in workers:
        taken = worker.blocks_total - worker.blocks_free
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=1.0, completed=worker.cache_use, width=10), f"{worker.cache_use:4.0%}")
        table.add_row(
            worker.name,
            worker.model,
            str(worker.running),
            str(worker.waiting),
            bar,
            f"{taken}/{worker.blocks_total}",
            f"{worker.tokens_per_second:,.1f}",
            _duration(worker.uptime),
            worker.version,
        )
    if len(workers) > 1:
        table.add_section()
        table.add_row(
            f"{len(workers)} workers",
            "",
            str(sum(worker.running for worker in workers)),
            str(sum(worker.waiting for worker in workers)),
            "",
            "",
            f"{sum(worker.tokens_per_second for worker in workers):,.1f}",
            "",
            "",
            style="bold",
        )
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
