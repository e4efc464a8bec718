"""What one request brings never ends the worker, and its neighbours' output is as if it were not there."""

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from live_worker import live_worker
from served_model import Reference
from tiny_models import VOCABULARY, save_tiny_model, tiny_tokenizer

from headrace.clients import AsyncClient, AsyncHandle
from headrace.worker.broker.entries import Claim
from headrace.worker.engine.sequence import Sequence as EngineSequence
from headrace.worker.model.load import loader
from headrace.worker.preparation import Preparation

pytestmark = pytest.mark.anyio
NEIGHBOURS = ["The water", "A request waits", "def add(a, b):"]
BAD = "look at <image> there"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer has one token more than its embedding table has rows."""
    folder = save_tiny_model("llama", tmp_path_factory.mktemp("added"))
    tokenizer = tiny_tokenizer(chat_template=True)
    assert tokenizer.add_tokens(["<image>"], special_tokens=True) == 1
    tokenizer.save_pretrained(folder)
    return folder


async def neighbours(client: AsyncClient) -> list[AsyncHandle]:
    return [await client.submit(prompt, max_tokens=40, ignore_eos=True) for prompt in NEIGHBOURS]


async def outputs(handles: Sequence[AsyncHandle]) -> list[list[int]]:
    return [(await handle.result()).tokens for handle in handles]


async def test_a_token_without_an_embedding_is_refused_where_text_becomes_tokens(
    redis_url: str, client: AsyncClient, folder: Path
) -> None:
    async with live_worker(redis_url, folder):
        undisturbed = await outputs(await neighbours(client))
        running = await neighbours(client)
        bad = [
            await client.submit(BAD),
            await client.submit(messages=[{"role": "user", "content": BAD}]),
            await client.submit(tokens=[5, VOCABULARY]),
        ]
        for handle, field in zip(bad, ["prompt", "messages", "tokens.1"], strict=True):
            error = (await handle.result()).error
            assert error is not None
            assert error.code == "invalid_request"
            assert error.message.startswith(f"{field}: ")
            assert str(VOCABULARY) in error.message
        assert await outputs(running) == undisturbed


async def test_a_row_that_fails_in_the_forward_pass_ends_alone(
    redis_url: str,
    client: AsyncClient,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def more_rows_than_there_are(name: str, model: object) -> int:
        del name, model
        return VOCABULARY + 1

    monkeypatch.setattr(loader, "_embedding_rows", more_rows_than_there_are)
    with caplog.at_level(logging.INFO, logger="headrace"):
        async with live_worker(redis_url, folder):
            undisturbed = await outputs(await neighbours(client))
            running = await neighbours(client)
            bad = [await client.submit(BAD) for _ in range(3)]
            for handle in bad:
                result = await handle.result()
                assert result.error is not None
                assert result.error.code == "internal_error"
                assert "IndexError" in result.error.message
            assert await outputs(running) == undisturbed
    for handle in bad:
        (line,) = [text for text in caplog.messages if handle.id in text and "raised" in text]
        assert line.startswith(f"request {handle.id}: ended with an error: computing its tokens 0 to")
        assert "\n" not in line


async def test_a_preparation_that_raises_ends_its_own_request(
    redis_url: str, client: AsyncClient, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Preparation.sequence

    def failing(self: Preparation, claim: Claim) -> EngineSequence:
        if claim.request.prompt == BAD:
            raise ZeroDivisionError("of the template")
        return prepare(self, claim)

    monkeypatch.setattr(Preparation, "sequence", failing)
    async with live_worker(redis_url, reference.folder):
        bad = await client.submit(BAD)
        good = await client.submit("The water", max_tokens=4)
        error = (await bad.result()).error
        assert error is not None
        assert (error.code, "ZeroDivisionError" in error.message) == ("internal_error", True)
        assert (await good.result()).tokens == reference.greedy("The water", 4)
