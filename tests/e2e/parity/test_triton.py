"""The Triton path, interpreted on the CPU, gives the tokens that transformers' generate gives."""

import random
from pathlib import Path

import pytest
import torch
from parity import Case, random_prompts, reference_cases, serve
from serve_with_triton import outputs_with_triton
from tiny_models import ARCHITECTURES, EOS, PAD, VOCABULARY, WINDOW, save_tiny_model, tiny_model

from headrace.worker.model.load.loader import load_model

MAX_TOKENS = 3
LONGEST_PROMPT = 12
assert LONGEST_PROMPT > WINDOW


@pytest.mark.parametrize(
    "architectures",
    [["gemma3"], pytest.param(list(ARCHITECTURES), marks=pytest.mark.slow)],
    ids=["gemma3", "all"],
)
def test_mixed_batches(architectures: list[str], tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # pytest shows it when the test fails
    rng = random.Random(seed)
    expected: dict[str, list[list[int]]] = {}
    jobs: list[dict[str, object]] = []
    for index, architecture in enumerate(architectures, 1):
        prompts = random_prompts(rng, lambda: rng.randrange(PAD + 1, VOCABULARY), LONGEST_PROMPT)
        as_on_gpu = index % 3 != 0
        # Three sequences decode padded to four.
        cases = reference_cases(
            tiny_model(architecture, seed), prompts, 2 + as_on_gpu, max_tokens=MAX_TOKENS, eos=EOS
        )
        folder = save_tiny_model(architecture, tmp_path / architecture, seed=seed)
        expected[architecture] = [case.expected for case in cases]
        jobs.append(
            {
                "folder": str(folder),
                "prompts": [case.prompt for case in cases],
                "max_tokens": MAX_TOKENS,
                "block_size": (4, 16)[index % 2],
                "as_on_gpu": as_on_gpu,
            }
        )
    assert dict(zip(architectures, outputs_with_triton(jobs), strict=True)) == expected


@pytest.mark.slow
def test_a_float8_cache_gives_the_tokens_that_torch_gives(tmp_path: Path) -> None:
    """Prompts in chunks, then decodes, all through the cache, with scales that each has measured itself."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    folder = save_tiny_model("qwen3", tmp_path, seed=seed)
    prompts = [[rng.randrange(PAD + 1, VOCABULARY) for _ in range(length)] for length in (1, 9, 20)]
    job = {
        "folder": str(folder),
        "prompts": prompts,
        "max_tokens": 4,
        "block_size": 4,
        "as_on_gpu": True,
        "float8": True,
    }
    expected = serve(
        load_model(str(folder), dtype="float32"),
        [Case(prompt, []) for prompt in prompts],
        max_tokens=4,
        block_size=4,
        kv_dtype=torch.float8_e4m3fn,
    )
    assert outputs_with_triton([job]) == [expected.outputs]
