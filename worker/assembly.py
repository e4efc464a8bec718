"""From settings to an engine: the model loaded, its cache sized, and each decision told in a line."""

import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .ageing import Ageing
from .cache_plan import plan_cache
from .config import WorkerConfig
from .engine.detokenizer import Detokenizer
from .engine.engine import Engine

if TYPE_CHECKING:
    import torch

    from .model.run.runner import ModelRunner
    from .preparation import Preparation

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Assembly:
    """What a worker runs, and what it says about it at start, one fact a line."""

    engine: Engine
    preparation: "Preparation"
    served_name: str
    facts: list[str]


def served_name(config: WorkerConfig) -> str:
    """The name that requests ask for."""
    if config.served_name is not None:
        return config.served_name
    folder = Path(config.model)
    return folder.resolve().name if folder.is_dir() else config.model


def assemble(config: WorkerConfig) -> Assembly:
    """Load the model and build the engine; takes seconds to minutes.

    Raises:
        headrace.worker.model.errors.UnservableModelError: the model cannot be served, and why.
        ValueError: settings that do not fit the model or the machine, naming the setting.
        OSError: no such model.
    """
    import torch
    from transformers.utils import logging as transformers_logging

    from .model.load.loader import load_model
    from .model.load.text import TextEncoder
    from .model.run.runner import ModelRunner
    from .preparation import Preparation

    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    name = served_name(config)
    if not sys.stderr.isatty():  # only people want a bar of the weights' loading
        transformers_logging.disable_progress_bar()
    loaded = load_model(
        config.model, device=device, dtype=config.dtype, trust_remote_code=config.trust_remote_code
    )
    info = loaded.info
    plan = plan_cache(config, loaded)
    runner = ModelRunner(
        loaded,
        num_blocks=plan.num_blocks,
        block_size=config.block_size,
        max_sequences=config.max_sequences,
        max_model_len=plan.max_model_len,
        kv_dtype=plan.dtype,
    )
    on_gpu = info.device.type != "cpu"
    speed_facts: list[str] = []
    if loaded.fused is not None:
        speed_facts = [f"fewer operations: {loaded.fused}"]
    if on_gpu:
        speed_facts += [_record_graphs(runner, info.device) if config.graphs else "CUDA graphs: off, as set"]
    engine = Engine(
        runner,
        Detokenizer.of(loaded.tokenizer.backend_tokenizer),
        num_blocks=plan.num_blocks,
        block_size=config.block_size,
        max_batched_tokens=config.max_batched_tokens,
        max_sequences=config.max_sequences,
        max_model_len=plan.max_model_len,
        prefix_caching=config.prefix_caching,
        overlap=on_gpu,
        ageing=Ageing.of(config.ageing),
    )
    encoder = TextEncoder(
        loaded.tokenizer, model=name, vocab_size=info.vocab_size, max_tokens=plan.max_model_len - 1
    )
    dtype = str(info.dtype).removeprefix("torch.")
    about_model = (
        f"model {name}: {info.architecture}, {info.num_parameters / 1e6:,.0f} M parameters, "
        f"{dtype} on {info.device}"
    )
    about_batch = (
        f"batch: up to {config.max_sequences} sequences and {config.max_batched_tokens} tokens an "
        f"iteration, prefix caching {'on' if config.prefix_caching else 'off'}"
    )
    facts = [about_model, *plan.facts, *speed_facts, about_batch]
    return Assembly(engine, Preparation(encoder, info.eos_ids), name, facts)


def _record_graphs(runner: "ModelRunner", device: "torch.device") -> str:
    """Record decode steps where the model lets itself be recorded; the outcome in a line."""
    import torch

    from .model.run.recording import CudaGraphs

    began = time.monotonic()

    def progress(done: int, total: int) -> None:
        if done * 4 // total > (done - 1) * 4 // total:  # at the start and after each quarter
            log.info("CUDA graphs: %d of %d decode steps recorded", done, total)

    try:
        runner.record_graphs(CudaGraphs(device), progress)
    except RuntimeError as error:
        # If this fails too, the device is lost and so is the process.
        torch.cuda.synchronize(device)
        reason = str(error).partition("\n")[0]
        log.warning("CUDA graphs: off, since this model's decode steps cannot be recorded: %s", reason)
        return "CUDA graphs: off, the model cannot be recorded"
    return f"CUDA graphs: recorded in {time.monotonic() - began:.1f} s"
