"""``headrace up``: everything in one go, and nothing left of it."""

import signal
from pathlib import Path

import httpx
import pytest
import redis
from tiny_models import save_tiny_model
from up_process import address, up
from waiting import eventually_sync


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model("llama", folder)
    return folder


def is_there(server: redis.Redis) -> bool:
    try:
        return bool(server.ping())
    except redis.ConnectionError:
        return False


def test_told_to_end_while_the_model_loads_it_leaves_no_server(model: Path, tmp_path: Path) -> None:
    with (
        up(model, tmp_path / "log") as process,
        redis.Redis.from_url(address(process, "Redis URL")) as server,
    ):
        assert is_there(server)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
        assert not is_there(server)


def test_token_names_in_log_probabilities_come_from_the_models_tokenizer(model: Path, tmp_path: Path) -> None:
    ask = {"model": "tiny", "prompt": "The mill", "max_tokens": 3, "logprobs": 2, "ignore_eos": True}
    with (
        up(model, tmp_path / "log") as process,
        redis.Redis.from_url(address(process, "Redis URL")) as server,
        httpx.Client(base_url=address(process, "OpenAI API"), timeout=60) as http,
    ):
        eventually_sync(lambda: http.post("/v1/completions", json=ask).status_code != 503, 300)
        choice = http.post("/v1/completions", json=ask).json()["choices"][0]
        names = choice["logprobs"]["tokens"]
        assert len(names) == 3
        assert not [name for name in names if name.startswith("token_id:")]
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0, (tmp_path / "log").read_text()
        assert not is_there(server)
