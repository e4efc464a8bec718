"""A device that lacks memory gets less to do, once; one that has failed ends the process with a line."""

from collections.abc import Callable

import pytest
import torch
import typer
from tiny_models import tiny_model, tiny_tokenizer
from torch import Tensor

from headrace.worker.cli.running import run
from headrace.worker.engine.detokenizer import Detokenizer
from headrace.worker.engine.engine import Engine
from headrace.worker.engine.errors import DeviceFailure, OutOfMemory
from headrace.worker.engine.sequence import SamplingParams, Sequence
from headrace.worker.engine.step import Finished
from headrace.worker.model.load.loader import LoadedModel, prepare
from headrace.worker.model.run.device_errors import in_engine_words
from headrace.worker.model.run.runner import ModelRunner

ILLEGAL = "CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA."


def shortage() -> RuntimeError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore of it")


def broken() -> RuntimeError:
    return torch.AcceleratorError(ILLEGAL)


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (shortage(), OutOfMemory, "CUDA out of memory. Tried to allocate 2.00 GiB."),
        (RuntimeError("Triton Error [CUDA]: out of memory"), OutOfMemory, "out of memory"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            OutOfMemory,
            "CUBLAS_STATUS_ALLOC_FAILED",
        ),
        (broken(), DeviceFailure, "cannot use it any more: CUDA error: an illegal memory access"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), DeviceFailure, "EXECUTION_FAILED"),
        (RuntimeError("HIP error: unspecified launch failure"), DeviceFailure, "unspecified launch failure"),
        (RuntimeError("Triton Error [CUDA]: device-side assert"), DeviceFailure, "device-side assert"),
    ],
)
def test_in_words(error: RuntimeError, kind: type[RuntimeError], says: str) -> None:
    told = in_engine_words(error)
    assert type(told) is kind
    assert says in str(told)
    assert "\n" not in str(told)


def test_other_errors_are_not_the_devices() -> None:
    assert in_engine_words(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    model = tiny_model("llama", seed=3)
    model.set_attn_implementation("headrace")
    return prepare("llama", model, tiny_tokenizer())


def make_engine(loaded: LoadedModel) -> Engine:
    runner = ModelRunner(loaded, num_blocks=24, block_size=4, max_sequences=4, max_model_len=48)
    return Engine(
        runner,
        Detokenizer.of(loaded.tokenizer.backend_tokenizer),
        num_blocks=24,
        block_size=4,
        max_batched_tokens=32,
        max_sequences=4,
        max_model_len=48,
    )


class Failing:
    """Raises an error wherever the model is given more than ``most`` tokens; notes how many it is given."""

    def __init__(self, loaded: LoadedModel, most: int, error: Callable[[], RuntimeError]) -> None:
        self.given: list[int] = []
        self._most = most
        self._error = error
        # Late in the pass: by then the first layer has written keys and values.
        self._hook = loaded.model.model.norm.register_forward_pre_hook(self._see)

    def _see(self, _module: object, arguments: tuple[Tensor, ...]) -> None:
        self.given.append(arguments[0].shape[1])
        if self.given[-1] > self._most:
            raise self._error()

    def __enter__(self) -> "Failing":
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()


def sequences() -> list[Sequence]:
    prompts = [[7, 8, 9, 100, 200, 300, 31, 32, 33, 34, 35, 36, 37, 38], [40, 41, 42, 43, 44, 45]]
    return [
        Sequence(str(at), prompt, SamplingParams(max_tokens=5), arrival=at)
        for at, prompt in enumerate(prompts)
    ]


def outputs(engine: Engine) -> dict[str, list[int]]:
    engine.add(sequences())
    found: dict[str, list[int]] = {}
    while engine.has_work:
        found |= {finished.sequence_id: finished.tokens for finished in engine.step().finished}
        engine.check()
    return found


def test_a_batch_too_large_is_computed_in_smaller_ones_with_the_same_tokens(loaded: LoadedModel) -> None:
    expected = outputs(make_engine(loaded))
    assert all(len(tokens) == 5 for tokens in expected.values())
    with Failing(loaded, 10, shortage) as device:
        assert outputs(make_engine(loaded)) == expected
    # All 20 tokens of the prompts, then half of them; the rest, which fits; and one by one.
    assert device.given[:3] == [20, 10, 10]


def test_memory_that_lacks_for_half_of_it_too_ends_the_worker(loaded: LoadedModel) -> None:
    engine = make_engine(loaded)
    with Failing(loaded, 9, shortage) as device, pytest.raises(OutOfMemory, match=r"Tried to allocate 2\.00"):
        outputs(engine)
    assert device.given == [20, 10]


def test_a_broken_device_is_not_tried_again(loaded: LoadedModel, capsys: pytest.CaptureFixture[str]) -> None:
    engine = make_engine(loaded)

    async def work() -> None:
        outputs(engine)

    with Failing(loaded, 0, broken) as device, pytest.raises(typer.Exit) as ended:
        run(work)
    assert device.given == [20]
    assert ended.value.exit_code == 1
    told = capsys.readouterr().err
    assert told == (
        "headrace: the device has failed and this process cannot use it any more: "
        "CUDA error: an illegal memory access was encountered\n"
    )


def test_an_error_of_the_models_own_ends_requests_and_not_the_process(loaded: LoadedModel) -> None:
    engine = make_engine(loaded)
    engine.add(sequences())
    ended: list[Finished] = []
    with Failing(loaded, 0, lambda: RuntimeError("shapes cannot be multiplied")):
        while engine.has_work:
            ended += engine.step().finished
    assert [end.reason for end in ended] == ["error"] * len(sequences())
    assert all(end.error_code == "internal_error" for end in ended)
