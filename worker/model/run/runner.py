"""Model runner: an iteration as a flat batch through the model, and one sampled token per finished chunk."""

from dataclasses import replace

import torch
from torch import Tensor

from ....kernels import AttentionBatch, Implementation, Sampled
from ...engine.iteration import Chunk, Iteration
from ...engine.sequence import SampledToken, SamplingParams
from ..load.loader import LoadedModel
from .attention import PagedAttention, connect
from .decode_graphs import DecodeGraphs, Progress
from .device_errors import in_engine_words
from .flat_batch import FlatBatch, FlatBatchBuilder
from .kv_scales import measure_scales
from .kv_tensors import allocate
from .recording import Recorder
from .sampler import Sampler
from .transfer import Download, upload


class ModelRunner:
    """A loaded model over its own paged KV cache; implements the engine's ``Runner``.

    Everything is called from one thread at a time. Iterations run in the order they are launched, so that
    one may use tokens sampled by the one before while those are still on the device only: ``launch`` waits
    for nothing on a GPU.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        num_blocks: int,
        block_size: int,
        max_sequences: int,
        max_model_len: int,
        kv_dtype: torch.dtype | None = None,
        implementation: Implementation | None = None,
    ) -> None:
        """``kv_dtype`` is the model's, as None is, or float8_e4m3fn, whose scales are measured here."""
        info = loaded.info
        self._model = loaded.model
        self._device = info.device
        self._implementation: Implementation | None = implementation
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._builder = FlatBatchBuilder(
            block_size=block_size, max_sequences=max_sequences, max_model_len=max_model_len
        )
        kv_dtype = kv_dtype or info.dtype
        kv = allocate(info.kv_layers, num_blocks, block_size, kv_dtype, info.device)
        if kv_dtype == torch.float8_e4m3fn:
            scales = measure_scales(loaded, implementation)
            kv = replace(kv, key_scales=scales.keys, value_scales=scales.values)
        self._attention = PagedAttention(kv, implementation)
        self._sampler = Sampler(info.device, implementation)
        # One more than there are sequences: the rows that pad a recorded step need a place, too.
        self._last_tokens = torch.zeros(max_sequences + 1, dtype=torch.int64, device=info.device)
        self._graphs: DecodeGraphs | None = None
        connect(self._model, self._attention)

    @torch.inference_mode()
    def record_graphs(self, recorder: Recorder, progress: Progress) -> None:
        """From now on replay decode steps that are recorded here, for every size of batch.

        Raises:
            RuntimeError: the model cannot be recorded; it runs as before.
        """
        graphs = DecodeGraphs(
            self._forward,
            self._last_tokens,
            max_model_len=self._max_model_len,
            block_size=self._block_size,
            implementation=self._implementation,
        )
        graphs.record(recorder, progress)
        self._graphs = graphs

    @torch.inference_mode()
    def launch(self, iteration: Iteration) -> "LaunchedIteration":
        """Start computing ``iteration``, which has at least one chunk."""
        batch = self._builder.build(iteration)
        sampling = [chunk for chunk in iteration.chunks if chunk.samples]
        try:
            if self._graphs is not None and self._graphs.can_run(batch):
                sampled = self._replay(self._graphs, batch, sampling)
            else:
                sampled = self._run(batch, sampling)
            return LaunchedIteration(sampled, [chunk.sequence.sampling for chunk in sampling])
        except RuntimeError as error:
            if (translated := in_engine_words(error)) is None:
                raise
            raise translated from error

    def _replay(self, graphs: DecodeGraphs, batch: FlatBatch, chunks: list[Chunk]) -> Sampled:
        output = graphs.run(batch)
        if self._sampler.is_greedy(chunks, output.logits.shape[1]):
            return Sampled(output.argmax)
        try:
            sampled = self._sampler.sample(output.logits, chunks, output.output_positions, output.previous)
        except Exception:
            # The recorded step has put its own tokens there. The engine runs the iteration again, in parts.
            self._last_tokens.index_copy_(0, output.slots, output.previous)
            raise
        self._last_tokens.index_copy_(0, output.slots, sampled.tokens)
        return sampled

    def _run(self, batch: FlatBatch, chunks: list[Chunk]) -> Sampled | None:
        tokens, positions, slot_mapping, rows, slots, output_positions, *more = upload(
            [
                batch.tokens,
                batch.positions,
                batch.slot_mapping,
                batch.rows,
                batch.slots,
                batch.output_positions,
                batch.pending_rows,
                batch.pending_slots,
                batch.query_start,
                batch.lengths,
                batch.block_table,
            ],
            self._device,
        )
        pending_rows, pending_slots, query_start, lengths, block_table = more
        if batch.pending_rows.size:
            tokens.index_copy_(0, pending_rows, self._last_tokens.index_select(0, pending_slots))
        attention_batch = AttentionBatch(query_start, lengths, block_table, batch.max_query, batch.max_length)
        every_row = batch.rows.size == batch.tokens.size
        logits = self._forward(tokens, positions, slot_mapping, attention_batch, None if every_row else rows)
        if not chunks:
            return None
        last_tokens = self._last_tokens.index_select(0, slots)
        sampled = self._sampler.sample(logits, chunks, output_positions, last_tokens)
        self._last_tokens.index_copy_(0, slots, sampled.tokens)
        return sampled

    def _forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        batch: AttentionBatch,
        rows: Tensor | None,
    ) -> Tensor:
        """Logits [R, vocabulary] of ``rows`` [R], or of all, of a flat batch's tokens and positions [T]."""
        self._attention.begin(batch, slot_mapping)
        output = self._model(
            input_ids=tokens.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=0 if rows is None else rows,
        )
        return output.logits[0]


class LaunchedIteration:
    """An iteration under way; implements the engine's ``Launched``."""

    def __init__(self, sampled: Sampled | None, params: list[SamplingParams]) -> None:
        self._params = params
        self._download = None if sampled is None else Download(sampled)

    def collect(self) -> list[SampledToken]:
        if self._download is None:
            return []
        try:
            sampled = self._download.wait()
        except RuntimeError as error:
            if (translated := in_engine_words(error)) is None:
                raise
            raise translated from error
        tokens: list[int] = sampled.tokens.tolist()
        if sampled.logprobs is None:
            return [SampledToken(token) for token in tokens]
        logprobs: list[float] = sampled.logprobs.tolist()
        tops = _top_logprobs(sampled)
        return [
            SampledToken(token)
            if params.logprobs is None
            else SampledToken(token, logprob, top[: params.logprobs])
            for params, token, logprob, top in zip(self._params, tokens, logprobs, tops, strict=True)
        ]


def _top_logprobs(sampled: Sampled) -> list[list[tuple[int, float]]]:
    """Tokens and log-probabilities of each row's top tokens, as many as there are."""
    if sampled.top_tokens is None or sampled.top_logprobs is None:
        return [[] for _ in sampled.tokens]
    rows = zip(sampled.top_tokens.tolist(), sampled.top_logprobs.tolist(), strict=True)
    return [list(zip(tokens, logprobs, strict=True)) for tokens, logprobs in rows]
