from collections.abc import AsyncIterator

import pytest
import torch
from live_worker import MODEL
from served_model import Reference
from tiny_models import save_tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.clients import AsyncClient


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = save_tiny_model("llama", tmp_path_factory.mktemp("models") / "llama", chat_template=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return Reference(folder, model.eval(), AutoTokenizer.from_pretrained(folder))


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(redis_url, model=MODEL) as client:
        yield client
