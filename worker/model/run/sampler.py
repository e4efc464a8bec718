"""Sampler: a batch's sampling parameters as tensors, kept while the batch stays the same."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ....kernels import Implementation, Penalties, Sampled, SamplingTensors, sample
from ...engine.iteration import Chunk
from ...engine.sequence import Sequence
from .transfer import upload


@dataclass(frozen=True, slots=True)
class _Parameters:
    """How the rows of one batch composition are sampled."""

    sequences: list[Sequence]
    tensors: dict[str, Tensor] | None
    """None is greedy for every row."""
    penalties: dict[str, Tensor] | None
    filters: bool
    num_logprobs: int | None


class Sampler:
    """Samples one token per row, each by its own sequence's parameters."""

    def __init__(self, device: torch.device, implementation: Implementation | None = None) -> None:
        self._device = device
        self._implementation: Implementation | None = implementation
        self._parameters = _Parameters([], None, None, filters=False, num_logprobs=None)

    def sample(
        self, logits: Tensor, chunks: list[Chunk], output_positions: Tensor, last_tokens: Tensor
    ) -> Sampled:
        """Sample after ``chunks``, one for each row of logits [R, vocabulary].

        ``output_positions`` int64 [R] are the positions of the new tokens in their outputs, ``last_tokens``
        int64 [R] the tokens sampled before, which the host may not know yet.
        """
        parameters = self._parameters_of(chunks, vocabulary=logits.shape[1])
        tensors = None
        if parameters.tensors is not None:
            penalties = None
            if parameters.penalties is not None:
                output = self._output_history(chunks, last_tokens)
                penalties = Penalties(**parameters.penalties, output=output)
            tensors = SamplingTensors(
                **parameters.tensors,
                position=output_positions,
                penalties=penalties,
                filters=parameters.filters,
            )
        return sample(
            logits, tensors, num_logprobs=parameters.num_logprobs, implementation=self._implementation
        )

    def is_greedy(self, chunks: list[Chunk], vocabulary: int) -> bool:
        """Whether every row is greedy: argmax of the unchanged logits, without log-probabilities."""
        parameters = self._parameters_of(chunks, vocabulary)
        return parameters.tensors is None and parameters.num_logprobs is None

    def _parameters_of(self, chunks: list[Chunk], vocabulary: int) -> _Parameters:
        sequences = [chunk.sequence for chunk in chunks]
        if sequences != self._parameters.sequences:
            self._parameters = self._gather(sequences, vocabulary)
        return self._parameters

    def _gather(self, sequences: list[Sequence], vocabulary: int) -> _Parameters:
        each = [sequence.sampling for sequence in sequences]
        wanted = [min(params.logprobs, vocabulary) for params in each if params.logprobs is not None]
        num_logprobs = max(wanted, default=None)
        if not any(params.temperature > 0 or params.has_penalties for params in each):
            return _Parameters(sequences, None, None, filters=False, num_logprobs=num_logprobs)
        arrays = {
            "temperature": np.array([params.temperature for params in each], np.float32),
            "top_k": np.array([min(params.top_k, vocabulary) for params in each], np.int32),
            "top_p": np.array([params.top_p for params in each], np.float32),
            "min_p": np.array([params.min_p for params in each], np.float32),
            "seed": np.array([params.seed & 0xFFFFFFFFFFFFFFFF for params in each], np.uint64).view(np.int64),
        }
        penalties = None
        if any(params.has_penalties for params in each):
            # A prompt may hold tokens that the model reads but has no logit for, such as those of images.
            penalized = [
                [token for token in sequence.prompt if token < vocabulary]
                if sequence.sampling.has_penalties
                else []
                for sequence in sequences
            ]
            penalties = {
                "repetition": np.array([params.repetition_penalty for params in each], np.float32),
                "presence": np.array([params.presence_penalty for params in each], np.float32),
                "frequency": np.array([params.frequency_penalty for params in each], np.float32),
                "prompt": _padded(penalized),
            }
        return _Parameters(
            sequences,
            self._upload(arrays),
            self._upload(penalties) if penalties else None,
            filters=any(params.top_k or params.top_p < 1 or params.min_p for params in each),
            num_logprobs=num_logprobs,
        )

    def _output_history(self, chunks: list[Chunk], last_tokens: Tensor) -> Tensor:
        """Output tokens of the rows with penalties, [R, N], padded with -1."""
        histories: list[list[int]] = []
        rows: list[int] = []
        for row, chunk in enumerate(chunks):
            sequence = chunk.sequence
            history = sequence.output if sequence.sampling.has_penalties else []
            if history is sequence.output and chunk.position > len(history):
                rows.append(row)
                history = [*history, -1]
            histories.append(history)
        columns = [len(histories[row]) - 1 for row in rows]
        output, at_row, at_column = upload(
            [_padded(histories), np.array(rows, np.int64), np.array(columns, np.int64)], self._device
        )
        return output.index_put_((at_row, at_column), last_tokens[at_row]) if rows else output

    def _upload(self, arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
        return dict(zip(arrays, upload(list(arrays.values()), self._device), strict=True))


def _padded(rows: list[list[int]]) -> np.ndarray:
    padded = np.full((len(rows), max(map(len, rows))), -1, np.int64)
    for row, tokens in zip(padded, rows, strict=True):
        row[: len(tokens)] = tokens
    return padded
