"""How a demonstration looks: a live table on a terminal, one line an iteration anywhere else."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .demo_record import Progress, Record

_STYLES = {"prefill": "yellow", "decode": "green", "queued": "cyan", "to come": "dim"}


class LiveView(AbstractContextManager["LiveView"]):
    """A table that grows with the answers."""

    def __init__(self, console: Console, record: Record) -> None:
        self._record = record
        self._console = console
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=12, transient=True)

    def __enter__(self) -> "LiveView":
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def stepped(self) -> None:
        """Nothing to do: the table is drawn at its own pace."""

    def ended(self, progress: Progress) -> None:
        """Nothing to do."""

    def _render(self) -> RenderableType:
        record = self._record
        table = Table(expand=True, header_style="bold", pad_edge=False)
        table.add_column("", width=2)
        table.add_column("state", width=8)
        table.add_column("prompt", width=9, justify="right")
        table.add_column("output", width=6, justify="right")
        table.add_column("blocks", width=6, justify="right")
        table.add_column("text", ratio=1, no_wrap=True, overflow="ellipsis")
        width = max(20, self._console.width - 42)
        for name, progress in record.requests.items():
            text = (progress.prompt.prompt + progress.text).replace("\n", "⏎")
            shown = Text(text[-width:])
            shown.stylize("dim", 0, max(0, len(shown) - len(progress.text)))
            computed = min(progress.computed, progress.prompt_tokens)
            table.add_row(
                name,
                Text(progress.state, style=_STYLES.get(progress.state, "")),
                f"{computed}/{progress.prompt_tokens}" if progress.prompt_tokens else "",
                str(progress.output_tokens or ""),
                str(progress.blocks or ""),
                shown,
            )
        used, total = record.blocks_used, max(1, record.blocks_total)
        cache = Table.grid(padding=(0, 1))
        cache.add_row(
            "KV cache", ProgressBar(total, used, width=30), f"{used} of {total} blocks, {used / total:.0%}"
        )
        state = (
            f"iteration {record.iterations}: {record.running} running, {record.waiting} waiting, "
            f"{record.tokens_per_second:.1f} tokens/s"
        )
        return Group(table, Text(state, style="bold"), Text(batch_text(record)), cache)


class PlainView(AbstractContextManager["PlainView"]):
    """One line an iteration: who got how many tokens, what they said, and how full the cache is."""

    def __init__(self, write: Callable[[str], None], record: Record) -> None:
        self._write = write
        self._record = record

    def __enter__(self) -> "PlainView":
        self._write("iteration | request, prefill or decode, tokens [blocks], new text | state")
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def stepped(self) -> None:
        """Print the iteration that has just ended."""
        record = self._record
        if not record.work:
            return
        used, total = record.blocks_used, record.blocks_total
        self._write(
            f"{record.iterations:4} | {batch_text(record, with_text=True)} | "
            f"{record.running} running, {record.waiting} waiting, KV {used}/{total} blocks "
            f"({used / max(1, total):.0%}), {record.tokens_per_second:.1f} tokens/s"
        )

    def ended(self, progress: Progress) -> None:
        """Print a finished request whole."""
        self._write(
            f"done {progress.prompt.name} ({progress.state}, {progress.output_tokens} tokens): "
            f"{progress.text!r}"
        )


def batch_text(record: Record, *, with_text: bool = False) -> str:
    """The batch of the last iteration: each sequence's kind, tokens, and size of its block table."""
    parts: list[str] = []
    for work in record.work:
        part = f"{work.name} {work.kind} {work.tokens} [{work.blocks}]"
        said = record.said.get(work.name)
        parts.append(f"{part} {said!r}" if with_text and said else part)
    return ", ".join(parts)


def summary_text(summary: dict[str, Any]) -> RenderableType:
    """The summary for people."""
    table = Table(header_style="bold", pad_edge=False)
    for heading in ("", "ended by", "prompt", "output", "first token", "in all"):
        table.add_column(heading, justify="left" if heading in ("", "ended by") else "right")
    for request in summary["requests"]:
        table.add_row(
            request["name"],
            request["state"],
            str(request["prompt_tokens"]),
            str(request["output_tokens"]),
            f"{request['time_to_first_token']:.2f} s",
            f"{request['seconds']:.2f} s",
        )
    lines = (
        (
            f"{len(summary['requests'])} requests, {summary['output_tokens']} tokens "
            f"in {summary['seconds']:.1f} s: {summary['tokens_per_second']:.1f} tokens/s"
        ),
        (
            f"{summary['iterations']} iterations with {summary['sequences_per_iteration']:.1f} sequences "
            f"on average, {summary['iterations_mixing_prefill_and_decode']} of them mixing prefill and decode"
        ),
        (
            f"KV cache: at most {summary['kv_blocks_peak']} of {summary['kv_blocks']} blocks of "
            f"{summary['kv_block_size']} tokens in use, {summary['kv_blocks_at_end']} at the end, "
            f"{summary['kv_waste']:.0%} of their positions empty; "
            f"{summary['prefix_cache_hit_tokens']} prompt tokens came from another request's blocks"
        ),
    )
    return Group(table, *(Text(line) for line in lines))
