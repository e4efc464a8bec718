from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from live_worker import MODEL
from served_model import Reference
from tiny_models import save_tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.clients import AsyncClient


def served(folder: Path, *, chat_template: bool) -> Reference:
    save_tiny_model("llama", folder, chat_template=chat_template)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return Reference(folder, model.eval(), AutoTokenizer.from_pretrained(folder))


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return served(tmp_path_factory.mktemp("llama"), chat_template=True)


@pytest.fixture(scope="session")
def reference_without_chat(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return served(tmp_path_factory.mktemp("llama_base"), chat_template=False)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(redis_url, model=MODEL) as client:
        yield client
