"""The npm packages ``openai`` and ``ai`` before a real gateway, and the examples of docs/javascript.md.

The suites themselves are JavaScript: ``openai.test.mjs`` and ``ai_sdk.test.mjs``.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from gateway_server import running_gateway
from node_packages import ENVIRONMENT, NODE, ROOT, SUITE
from paced_worker import paced_worker
from redis_servers import BINARIES, RedisServer, running
from tiny_models import save_tiny_model

from headrace.clients.gateway.access.api_keys import make_key

EXAMPLE = re.compile(r"```js\n(// (\S+)\n.*?)```", re.DOTALL)
PAGE = ROOT / "docs" / "javascript.md"


@pytest.fixture(scope="module")
def environment(packages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables for Node, with the addresses of gateways before one worker, whose steps take some time."""
    del packages
    folder = tmp_path_factory.mktemp("npm")
    save_tiny_model("llama", folder / "model", chat_template=True)
    key, table = make_key("acme")
    (folder / "keys.toml").write_text(table + "\n")
    names = (("tiny", folder / "model" / "tokenizer.json"),)
    with ExitStack() as stack:
        server = stack.enter_context(running(RedisServer(next(iter(BINARIES)), folder / "server")))
        worker = stack.enter_context(paced_worker(server.url, folder / "model", max_sequences=4))
        worker.pause = 0.005
        gateway = stack.enter_context(running_gateway(server.url, tokenizers=names))
        small = stack.enter_context(running_gateway(server.url, queue_limit=1))
        guarded = stack.enter_context(running_gateway(server.url, keys_file=folder / "keys.toml"))
        examples = write_examples(gateway.url, server.url)
        yield {
            **ENVIRONMENT,
            "GATEWAY": gateway.url,
            "SMALL_GATEWAY": small.url,
            "GUARDED_GATEWAY": guarded.url,
            "GATEWAY_KEY": key,
            "EXAMPLES": str(examples),
        }


def write_examples(gateway: str, redis: str) -> Path:
    """The page's examples as they stand, but for addresses and the model, where they find their packages."""
    folder = SUITE / "node_modules" / ".examples"
    for code, name in EXAMPLE.findall(PAGE.read_text()):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        here = code.replace("http://localhost:8000", gateway).replace("redis://localhost:6379/0", redis)
        file.write_text(here.replace("gemma-3-270m", "tiny"))
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


def node(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [NODE, *arguments], cwd=SUITE, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("suite", ["openai.test.mjs", "ai_sdk.test.mjs"])
def test_the_package_works_with_the_gateway(environment: dict[str, str], suite: str) -> None:
    report = node(environment, "--test", "--test-force-exit", "--test-reporter=tap", suite)
    assert re.search(r"^# fail 0$", report, re.MULTILINE)
    assert re.search(r"^# pass [1-9]", report, re.MULTILINE)
    assert re.search(r"^# skipped 0$", report, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("quick_start.mjs", r"(?s).+\n(length|stop): \d+ tokens\nfinished\n"),
        ("openai_package.mjs", r"(?s).+"),
    ],
)
def test_an_example_does_what_it_says(environment: dict[str, str], name: str, output: str) -> None:
    assert re.fullmatch(output, node(environment, str(Path(environment["EXAMPLES"]) / name)))


def test_every_example_is_run() -> None:
    names = {name for _, name in EXAMPLE.findall(PAGE.read_text())}
    routes = {"app/api/chat/route.js", "app/api/resumable/route.js"}
    assert names == {"quick_start.mjs", "openai_package.mjs"} | routes
