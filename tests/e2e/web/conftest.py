"""The web page in a real browser, before a gateway, a queue and a worker on a tiny model, all real.

One browser and one worker serve all of these tests; each test has a profile of its own.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from gateway_server import RunningGateway, running_gateway
from paced_worker import PacedWorker, paced_worker
from playground_page import LONG, PlaygroundPage
from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright
from redis_servers import BINARIES, RedisServer, running
from tiny_models import save_tiny_model
from waiting import eventually_sync

from headrace.clients.protocol import Keys

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = [
    "--no-sandbox",
    "--headless=new",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

expect.set_options(timeout=LONG)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(RedisServer(next(iter(BINARIES)), tmp_path_factory.mktemp("web"))) as server:
        yield server.url


@pytest.fixture(scope="package")
def _worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PacedWorker]:
    folder: Path = tmp_path_factory.mktemp("model")
    save_tiny_model("llama", folder, chat_template=True)
    with paced_worker(redis_url, folder, max_sequences=4, max_batched_tokens=32) as worker:
        yield worker


@pytest.fixture
def worker(_worker: PacedWorker, redis_url: str) -> Iterator[PacedWorker]:
    """Fast unless a test slows it down; what a test leaves behind is finished first, and the worker has told
    so: it tells of itself once a second, and the next test is not to be shown what ran in this one."""
    yield _worker
    _worker.pause = 0.0
    with redis.Redis.from_url(redis_url) as client:
        queues = Keys().queues("tiny")
        eventually_sync(lambda: _worker.is_idle and not any(map(client.xlen, queues)))
        seconds, microseconds = client.time()
        since = 1000 * seconds + microseconds // 1000
        (record,) = client.keys("headrace:worker:*")
        eventually_sync(lambda: int(client.hget(record, "updated")) >= since)
        assert client.hget(record, "running") == b"0"
    assert _worker.failures == []


@pytest.fixture(scope="package")
def gateway(redis_url: str) -> Iterator[RunningGateway]:
    with running_gateway(redis_url) as gateway:
        yield gateway


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(LONG)
    yield context
    context.close()


@pytest.fixture
def new_tab(context: BrowserContext) -> Iterator[Callable[[str], PlaygroundPage]]:
    """Opens tabs at a gateway's address; a script that fails in one of them fails the test."""
    errors: list[str] = []

    def open_tab(url: str) -> PlaygroundPage:
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        return PlaygroundPage(page, url)

    yield open_tab
    assert errors == []


@pytest.fixture
def tab(new_tab: Callable[[str], PlaygroundPage], gateway: RunningGateway) -> PlaygroundPage:
    return new_tab(gateway.url)
