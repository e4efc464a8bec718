"""The npm packages ``openai`` and ``ai``, reading streams in which nothing comes for a while."""

import subprocess

import pytest
from node_packages import ENVIRONMENT, NODE, SUITE
from redis_servers import RedisServer
from silent_model import TEXT, silent_model


@pytest.fixture
def redis_server(_shared_servers: dict[str, RedisServer]) -> RedisServer:
    """One kind: HTTP is the same over both."""
    return next(iter(_shared_servers.values()))


@pytest.mark.parametrize(
    "reader", ["openai", "openai, stream helper", "openai, completions", "ai", "ai, completions"]
)
def test_a_reader_in_openais_format(packages: None, redis_url: str, reader: str) -> None:
    del packages
    with silent_model(redis_url) as model:
        done = subprocess.run(
            [NODE, "silences.mjs", reader],
            cwd=SUITE,
            env={**ENVIRONMENT, "GATEWAY": model.url},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert (done.returncode, done.stdout) == (0, TEXT), done.stderr[-4000:]
