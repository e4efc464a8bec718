"""A float8 cache has scales that fit what the model's keys and values are, and costs little exactness."""

import torch
from tiny_models import tiny_model, tiny_tokenizer
from transformers import PreTrainedModel

from headrace.worker.engine.iteration import Chunk, Iteration
from headrace.worker.engine.sequence import SampledToken, SamplingParams, Sequence
from headrace.worker.model.load.loader import LoadedModel, prepare
from headrace.worker.model.passes.fusion import fuse_layers
from headrace.worker.model.run.kv_scales import LARGEST_STORED, measure_scales
from headrace.worker.model.run.runner import ModelRunner

PROMPT = [40, 41, 42, 100, 101, 102, 7, 8, 9, 200, 300, 5]
STEPS = 8


def llama(*, keys: float = 1.0, values: float = 1.0, fused: bool = False) -> LoadedModel:
    """A model whose keys and values are so many times as large, and whose answers are the same."""
    model: PreTrainedModel = tiny_model("llama", seed=5)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.k_proj.weight *= keys
            layer.self_attn.q_proj.weight /= keys
            layer.self_attn.v_proj.weight *= values
            layer.self_attn.o_proj.weight /= values
    model.set_attn_implementation("headrace")
    loaded = prepare("llama", model, tiny_tokenizer())
    if fused:
        fuse_layers(model, "torch")
    return loaded


def answer(loaded: LoadedModel, kv_dtype: torch.dtype | None) -> list[SampledToken]:
    """A prompt in two chunks, then tokens one by one, each given by the test."""
    runner = ModelRunner(
        loaded, num_blocks=8, block_size=4, max_sequences=1, max_model_len=32, kv_dtype=kv_dtype
    )
    sequence = Sequence("", list(PROMPT), SamplingParams(logprobs=20))
    sequence.block_table, sequence.slot = [3, 1, 0, 5, 7, 2], 0
    found: list[SampledToken] = []
    pieces = [(0, 7), (7, 5), *((len(PROMPT) + step, 1) for step in range(STEPS))]
    for start, length in pieces:
        known = len(sequence.prompt) + len(sequence.output)
        chunk = Chunk(sequence, start, length, start + length >= known, len(found), num_blocks=6)
        sampled = runner.launch(Iteration(1, [chunk])).collect()
        found += sampled
        sequence.output += [50 + len(found)] * len(sampled)
    return found


def test_scales_are_powers_of_two_that_leave_room() -> None:
    plain, larger = measure_scales(llama()), measure_scales(llama(keys=2.0**10, values=2.0**-7))
    for scale in [*plain.keys, *plain.values]:
        assert torch.equal(scale.log2(), scale.log2().round())
    assert all(torch.equal(one * 2**10, other) for one, other in zip(plain.keys, larger.keys, strict=True))
    assert all(
        torch.equal(one * 2**-7, other) for one, other in zip(plain.values, larger.values, strict=True)
    )
    # Tiny models' numbers are of the order of 1.
    assert max(float(scale.max()) for scale in plain.keys) * LARGEST_STORED < 100


def test_scales_do_not_depend_on_the_random_state() -> None:
    torch.manual_seed(1)
    first = measure_scales(llama())
    torch.manual_seed(2)
    second = measure_scales(llama(fused=True))
    assert all(torch.equal(*pair) for pair in zip(first.keys, second.keys, strict=True))
    assert all(torch.equal(*pair) for pair in zip(first.values, second.values, strict=True))


def test_magnitudes_that_float8_cannot_hold_change_nothing() -> None:
    expected = answer(llama(), torch.float8_e4m3fn)
    assert answer(llama(keys=2.0**12, values=2.0**-14), torch.float8_e4m3fn) == expected


def test_log_probabilities_stay_near_those_of_a_whole_cache() -> None:
    whole, small = answer(llama(), None), answer(llama(), torch.float8_e4m3fn)
    assert len(whole) == len(small) == STEPS + 1
    assert [token.logprob for token in whole] != [token.logprob for token in small]
    differences: list[float] = []
    for expected, found in zip(whole, small, strict=True):
        nearby = dict(found.top or [])
        differences += [abs(nearby[token] - logprob) for token, logprob in (expected.top or [])[:5]]
    # The tiny model's logits spread over tens of nats: this is some hundredths of that.
    assert sum(differences) / len(differences) < 1.0
