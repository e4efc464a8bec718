"""The Triton path, interpreted on the CPU, gives the tokens that transformers' generate gives."""

import random
from pathlib import Path

from parity import random_prompts, reference_cases
from serve_with_triton import outputs_with_triton
from tiny_models import ARCHITECTURES, EOS, PAD, VOCABULARY, WINDOW, save_tiny_model, tiny_model

MAX_TOKENS = 3
LONGEST_PROMPT = 12
assert LONGEST_PROMPT > WINDOW


def test_mixed_batches_of_six_architectures(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # pytest shows it when the test fails
    rng = random.Random(seed)
    expected: dict[str, list[list[int]]] = {}
    jobs: list[dict[str, object]] = []
    for index, architecture in enumerate(ARCHITECTURES):
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
    assert dict(zip(ARCHITECTURES, outputs_with_triton(jobs), strict=True)) == expected
