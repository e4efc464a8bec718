"""Sampling in Triton: the launches of a call and their workspace.

A row is cut into chunks, so that a few rows keep a GPU busy. Greedy sampling reads the logits once (scan,
choose); drawing reads them once more (scan, draw, choose); filters, in between, read chunks of them several
times more.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from ..launch import Launch, run
from .parameters import Penalties, Sampled, SamplingTensors
from .triton_draw import draw_kernel
from .triton_filters import filter_kernel
from .triton_logits import choose_kernel, count_kernel, scan_kernel
from .triton_top import chunk_top_kernel, merge_top_kernel

CHUNK = 4096
HISTORY_PIECE = 1024


def sample(logits: Tensor, params: SamplingTensors | None, num_logprobs: int | None) -> Sampled:
    """See ``headrace.kernels.sample``."""
    launches, result = plan(logits, params, num_logprobs)
    run(launches)
    return result


def plan(
    logits: Tensor, params: SamplingTensors | None, num_logprobs: int | None, *, chunk: int = CHUNK
) -> tuple[list[Launch], Sampled]:
    """The launches of one call, and the tensors that they fill. ``chunk``, in columns, is a multiple
    of 4 and a power of 2."""
    rows, vocabulary = logits.shape
    if logits.stride(1) != 1:
        raise ValueError(f"logits: the vocabulary must be contiguous, got strides {logits.stride()}")
    chunks = -(-vocabulary // chunk)
    result = Sampled(logits.new_empty(rows, dtype=torch.int64))

    def floats(*shape: int) -> Tensor:
        return logits.new_empty(shape, dtype=torch.float32)

    def integers(*shape: int) -> Tensor:
        return logits.new_empty(shape, dtype=torch.int32)

    raw_maxima = raw_sums = normalizers = None
    if num_logprobs is not None:
        raw_maxima, raw_sums, normalizers = floats(rows, chunks), floats(rows, chunks), floats(rows)
        result.logprobs = floats(rows)
    if not rows:
        _add_top(result, logits, normalizers, num_logprobs, chunk, [])
        return [], result
    row: dict[str, Any] = {"logits": logits, "logits_stride": logits.stride(0), "VOCABULARY": vocabulary}
    cut = {"CHUNK": chunk, "CHUNKS": chunks}
    padded = {"PADDED_CHUNKS": triton.next_power_of_2(chunks)}
    greedy = {"maxima": floats(rows, chunks), "argmaxima": integers(rows, chunks)}
    maxima = {"maxima": greedy["maxima"]}
    raw = {"raw_maxima": raw_maxima, "raw_sums": raw_sums}
    drawn: dict[str, Tensor | None] = {"drawn_maxima": None, "drawn_argmaxima": None}
    temperature = None if params is None else params.temperature

    launches, penalties = _penalties(logits, None if params is None else params.penalties)
    launches.append(Launch(scan_kernel, (rows, chunks), row | cut | penalties | greedy | raw, num_warps=4))
    if params is not None:
        drawn = {"drawn_maxima": floats(rows, chunks), "drawn_argmaxima": integers(rows, chunks)}
        temperatures = {"temperature": temperature}
        cutoffs = integers(rows) if params.filters else None
        if params.filters:
            filters = {
                "top_k": params.top_k,
                "top_p": params.top_p,
                "min_p": params.min_p,
                "cutoffs": cutoffs,
            }
            arguments = row | cut | padded | penalties | maxima | temperatures | filters
            launches.append(Launch(filter_kernel, (rows,), arguments, num_warps=8))
        noise = {"seed": params.seed, "position": params.position, "cutoffs": cutoffs}
        arguments = row | cut | padded | penalties | maxima | temperatures | noise | drawn
        launches.append(Launch(draw_kernel, (rows, chunks), arguments, num_warps=8))
    arguments = (
        row
        | {"CHUNKS": chunks}
        | padded
        | greedy
        | raw
        | drawn
        | {
            "temperature": temperature,
            "tokens": result.tokens,
            "logprobs": result.logprobs,
            "normalizers": normalizers,
        }
    )
    launches.append(Launch(choose_kernel, (rows,), arguments, num_warps=4))
    _add_top(result, logits, normalizers, num_logprobs, chunk, launches)
    return launches, result


def _penalties(logits: Tensor, penalties: Penalties | None) -> tuple[list[Launch], dict[str, Tensor | None]]:
    """The launches that count the tokens of the histories, and the kernels' arguments for penalties."""
    if penalties is None:
        return [], dict.fromkeys(("counts", "repetition", "presence", "frequency"))
    rows, vocabulary = logits.shape
    counts = torch.zeros(rows, vocabulary, dtype=torch.int32, device=logits.device)
    launches: list[Launch] = []
    for history, prompt in ((penalties.prompt, True), (penalties.output, False)):
        length = history.shape[1]
        if not length:
            continue
        if history.stride(1) != 1:
            history = history.contiguous()
        arguments = {
            "history": history,
            "counts": counts,
            "length": length,
            "history_stride": history.stride(0),
            "VOCABULARY": vocabulary,
            "PROMPT": prompt,
            "PIECE": HISTORY_PIECE,
        }
        launches.append(Launch(count_kernel, (rows, -(-length // HISTORY_PIECE)), arguments, num_warps=4))
    return launches, {
        "counts": counts,
        "repetition": penalties.repetition,
        "presence": penalties.presence,
        "frequency": penalties.frequency,
    }


def _add_top(
    result: Sampled,
    logits: Tensor,
    normalizers: Tensor | None,
    number: int | None,
    chunk: int,
    launches: list[Launch],
) -> None:
    """Plan for the top ``number`` tokens of each row, if any."""
    if not number:
        return
    rows, vocabulary = logits.shape
    chunks = -(-vocabulary // chunk)
    result.top_tokens = logits.new_empty(rows, number, dtype=torch.int64)
    result.top_logprobs = logits.new_empty(rows, number, dtype=torch.float32)
    if not rows:
        return
    values = logits.new_empty(rows, chunks, number, dtype=torch.float32)
    columns = logits.new_empty(rows, chunks, number, dtype=torch.int32)
    common = {"values": values, "columns": columns, "VOCABULARY": vocabulary, "NUMBER": number}
    arguments = common | {
        "logits": logits,
        "logits_stride": logits.stride(0),
        "CHUNK": chunk,
        "CHUNKS": chunks,
    }
    launches.append(Launch(chunk_top_kernel, (rows, chunks), arguments, num_warps=4))
    arguments = common | {
        "normalizers": normalizers,
        "top_tokens": result.top_tokens,
        "top_logprobs": result.top_logprobs,
        "CANDIDATES": chunks * number,
        "PADDED_CANDIDATES": triton.next_power_of_2(chunks * number),
    }
    launches.append(Launch(merge_top_kernel, (rows,), arguments, num_warps=8))
