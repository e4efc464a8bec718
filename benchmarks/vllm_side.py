"""vLLM's side of ``benchmarks.beside_vllm``, run by the Python of an environment that has it.

Reads one JSON object a line, ``{"prompts": [[...], ...], "output": n}``, answers each with the seconds that
greedy generation took, and ends with its input.
"""

import json
import os
import sys
import time

# One process, as many threads as there are cores: none is set aside for a server.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints to standard output, too
    from vllm import LLM, SamplingParams, __version__

    model, dtype, sequences, length = sys.argv[1:]
    llm = LLM(model=model, dtype=dtype, max_num_seqs=int(sequences), max_model_len=int(length))
    print(json.dumps({"version": __version__}), file=answers, flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        sampling = SamplingParams(
            max_tokens=work["output"], temperature=0.0, ignore_eos=True, detokenize=True
        )
        prompts = [{"prompt_token_ids": prompt} for prompt in work["prompts"]]
        begin = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - begin
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        print(json.dumps({"seconds": seconds, "tokens": tokens}), file=answers, flush=True)


if __name__ == "__main__":
    main()
