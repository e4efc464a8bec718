"""GPU memory for the KV cache: the rest beside the model and the largest iteration, measured."""

from dataclasses import dataclass

import numpy as np
import torch

from ....kernels import AttentionBatch, Penalties, SamplingTensors, sample
from ..load.loader import LoadedModel
from .attention import PagedAttention, connect
from .kv_tensors import allocate
from .transfer import upload

_NUM_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of a GPU's memory."""

    total: int
    used: int
    """By everybody, the model's weights among it."""
    iteration: int
    """What the largest iteration takes besides."""

    def left(self, utilization: float) -> int:
        """What remains for a KV cache if ``utilization`` of the memory, from 0 to 1, may be in use.

        Raises:
            ValueError: nothing does.
        """
        left = int(self.total * utilization) - self.used - self.iteration
        if left <= 0:
            gib = [f"{size / 2**30:.2f} GiB" for size in (self.total, self.used, self.iteration)]
            raise ValueError(
                f"gpu_memory_utilization: {utilization:g} of the device's {gib[0]} leaves nothing for the KV "
                f"cache: {gib[1]} are in use and an iteration takes {gib[2]}; raise it, or lower "
                "max_batched_tokens or max_sequences"
            )
        return left


def measure(
    loaded: LoadedModel,
    *,
    max_batched_tokens: int,
    max_sequences: int,
    max_model_len: int,
    block_size: int,
    graphs: bool,
) -> DeviceMemory:
    """Run the largest iteration on the model's GPU and see what it takes.

    With ``graphs``, recorded decode steps take memory of their own: as much as the largest of them.
    """
    device = loaded.info.device
    iteration = 0
    for tokens in (max_batched_tokens, max_sequences) if graphs else (max_batched_tokens,):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run_iteration(
            loaded,
            num_tokens=tokens,
            num_sequences=max_sequences,
            max_model_len=max_model_len,
            block_size=block_size,
        )
        torch.cuda.synchronize(device)
        iteration += torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total=total, used=total - free, iteration=iteration)


@torch.inference_mode()
def run_iteration(
    loaded: LoadedModel, *, num_tokens: int, num_sequences: int, max_model_len: int, block_size: int
) -> torch.Tensor:
    """Run ``num_tokens`` tokens of as many sequences as they can be of, every one sampled by every rule.

    Returns the sampled tokens [R]. The cache is one block, which nothing is written to; attention takes the
    workspace that sequences of ``max_model_len`` would need.
    """
    info = loaded.info
    queries = _spread(num_tokens, num_sequences, max_model_len)
    query_start = np.zeros(len(queries) + 1, np.int32)
    np.cumsum(queries, out=query_start[1:])
    owners = np.repeat(np.arange(len(queries)), queries)
    positions = np.arange(query_start[-1]) - query_start[owners]
    tokens, positions, slots, rows, starts, lengths, tables = upload(
        [
            np.zeros_like(positions),
            positions,
            np.full_like(positions, -1),
            query_start[1:].astype(np.int64) - 1,
            query_start,
            np.array(queries, np.int32),
            np.zeros((len(queries), -(-max_model_len // block_size)), np.int32),
        ],
        info.device,
    )
    attention = PagedAttention(allocate(info.kv_layers, 1, block_size, info.dtype, info.device))
    connect(loaded.model, attention)
    attention.begin(AttentionBatch(starts, lengths, tables, max(queries), max_model_len), slots)
    logits = loaded.model(
        input_ids=tokens.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        use_cache=False,
        logits_to_keep=rows,
    ).logits[0]
    num_logprobs = min(_NUM_LOGPROBS, logits.shape[1])
    return sample(logits, _every_rule(len(queries), info.device), num_logprobs=num_logprobs).tokens


def _spread(num_tokens: int, num_sequences: int, max_model_len: int) -> list[int]:
    """Queries of each sequence: at least one, the first ones' as many as a sequence can have."""
    count = min(num_sequences, num_tokens)
    queries: list[int] = []
    left = num_tokens
    for others in reversed(range(count)):
        queries.append(min(left - others, max_model_len))
        left -= queries[-1]
    return queries


def _every_rule(rows: int, device: torch.device) -> SamplingTensors:
    def filled(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((rows,), value, dtype=dtype, device=device)

    history = torch.zeros(rows, 1, dtype=torch.int64, device=device)
    return SamplingTensors(
        temperature=filled(1.0),
        top_k=filled(50, torch.int32),
        top_p=filled(0.9),
        min_p=filled(0.01),
        seed=filled(0, torch.int64),
        position=filled(0, torch.int64),
        penalties=Penalties(filled(1.1), filled(0.1), filled(0.1), history, history),
    )
