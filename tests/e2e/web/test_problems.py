"""What the page says when something is not as it should be, and what one can do about it there."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from gateway_server import RunningGateway, running_gateway
from paced_worker import PacedWorker
from playground_page import PlaygroundPage
from playwright.sync_api import Route, expect

from headrace.clients.gateway.access.api_keys import make_key

NewTab = Callable[[str], PlaygroundPage]


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """Keys by name, in ``keys.toml``."""
    made = {
        "admin": make_key("operator", admin=True),
        "plain": make_key("somebody"),
        "slow": make_key("slow", rate=1, burst=1),
    }
    (tmp_path / "keys.toml").write_text("".join(table + "\n" for _, table in made.values()))
    return {name: key for name, (key, _) in made.items()}


def enter_key(tab: PlaygroundPage, key: str) -> None:
    tab.page.click("#open-key")
    tab.page.fill("#key-input", key)
    tab.page.keyboard.press("Enter")
    tab.headers = {"Authorization": f"Bearer {key}"}


def answered(tab: PlaygroundPage, key: str) -> PlaygroundPage:
    """Opened, with that key and a request that has ended."""
    enter_key(tab.open(), key)
    tab.send("The wheel", max_tokens=10)
    tab.wait_for_end()
    return tab


def test_a_key_is_asked_for_and_kept_in_the_tab_only(
    new_tab: NewTab, redis_url: str, tmp_path: Path, keys: dict[str, str], worker: PacedWorker
) -> None:
    del worker
    with running_gateway(redis_url, keys_file=tmp_path / "keys.toml") as gateway:
        tab = new_tab(gateway.url).open()
        expect(tab.problem).to_contain_text("needs an API key")
        expect(tab.page.locator("#live-problem")).to_contain_text("valid API key")
        tab.page.click("#problem-action")
        tab.page.fill("#key-input", "hr_wrong")
        tab.page.keyboard.press("Enter")
        expect(tab.problem).to_contain_text("missing or not valid")
        enter_key(tab, keys["admin"])
        expect(tab.problem).to_be_hidden()
        expect(tab.page.locator("#live-state")).to_have_text("Live")
        tab.send("The wheel", max_tokens=10)
        tab.wait_for_end()
        assert tab.output == tab.told()["result"]["text"]
        tab.page.reload()
        tab.wait_for_end()
        assert keys["admin"] not in tab.page.url
        assert keys["admin"] not in tab.page.evaluate("JSON.stringify(localStorage)")
        assert keys["admin"] not in tab.page.content()
        other = new_tab(gateway.url).open()
        expect(other.problem).to_contain_text("needs an API key")


def test_a_tenant_has_a_playground_and_no_live_view(
    new_tab: NewTab, redis_url: str, tmp_path: Path, keys: dict[str, str], worker: PacedWorker
) -> None:
    del worker
    with running_gateway(redis_url, keys_file=tmp_path / "keys.toml") as gateway:
        tab = new_tab(gateway.url).open()
        enter_key(tab, keys["plain"])
        expect(tab.page.locator("#live-problem")).to_contain_text("may not see the system")
        expect(tab.page.locator("#live-body")).to_be_hidden()
        tab.send("The wheel", max_tokens=10)
        tab.wait_for_end()
        someone_else = new_tab(gateway.url)
        someone_else.open()
        enter_key(someone_else, keys["slow"])
        someone_else.page.goto(tab.page.url)
        expect(someone_else.problem).to_contain_text("not known")


def test_a_refusal_of_the_key_before_says_nothing_of_the_one_that_has_come(
    new_tab: NewTab, redis_url: str, tmp_path: Path, keys: dict[str, str], worker: PacedWorker
) -> None:
    del worker
    with running_gateway(redis_url, keys_file=tmp_path / "keys.toml") as gateway:
        tab = answered(new_tab(gateway.url), keys["plain"])
        late = new_tab(gateway.url)
        held: list[Route] = []

        def hold_the_first(route: Route) -> None:
            if held:
                route.continue_()
            else:
                held.append(route)

        late.page.route("**/v1/requests/*/events", hold_the_first)
        with late.page.expect_request("**/v1/requests/*/events"):
            late.open(f"#request={tab.request}")
        enter_key(late, keys["plain"])
        expect(late.page.locator("#key-state")).to_contain_text("set")
        held[0].continue_()
        late.wait_for_end()
        expect(late.problem).to_be_hidden()
        assert late.output == tab.output


def test_a_rate_that_is_used_up_says_when_to_try_again(
    new_tab: NewTab, redis_url: str, tmp_path: Path, keys: dict[str, str], worker: PacedWorker
) -> None:
    del worker
    with running_gateway(redis_url, keys_file=tmp_path / "keys.toml") as gateway:
        tab = answered(new_tab(gateway.url), keys["slow"])
        tab.send("The wheel", max_tokens=5)
        expect(tab.page.locator("#problem-action")).to_have_text(re.compile(r"^Try again in \d+ s$"))
        expect(tab.page.locator("#problem-action")).to_be_disabled()
        expect(tab.page.locator("#prompt")).to_have_value("The wheel")


def test_a_field_that_is_wrong_is_pointed_at(tab: PlaygroundPage, worker: PacedWorker) -> None:
    del worker
    tab.open().send("The wheel", top_p=7)
    field = tab.page.locator("[name=top_p]")
    expect(tab.problem).to_contain_text("top_p")
    expect(field).to_be_focused()
    expect(field).to_have_attribute("aria-invalid", "true")
    tab.send("The wheel", top_p=0.9, max_tokens=5)
    tab.wait_for_end()
    expect(tab.problem).to_be_hidden()
    expect(field).not_to_have_attribute("aria-invalid", "true")


def test_a_prompt_that_is_too_long_for_the_model_fails_with_its_reason(
    tab: PlaygroundPage, worker: PacedWorker
) -> None:
    del worker
    tab.open().send("wheel " * 2000, max_tokens=5)
    expect(tab.status).to_have_text("Failed")
    expect(tab.problem).to_contain_text("prompt: must")


def test_a_request_that_has_expired_is_told_and_forgotten(tab: PlaygroundPage, worker: PacedWorker) -> None:
    del worker
    tab.open("#request=0123456789abcdef")
    expect(tab.problem).to_contain_text("has expired")
    tab.page.click("#problem-action")
    expect(tab.problem).to_be_hidden()
    assert "#" not in tab.page.url
    tab.send("The wheel", max_tokens=5)
    tab.wait_for_end()


@pytest.mark.parametrize("hours", [0, 2, -2])
def test_a_deadline_that_passes_is_told(tab: PlaygroundPage, worker: PacedWorker, hours: int) -> None:
    """Whatever the browser's clock says."""
    worker.pause = 0.1
    tab.page.add_init_script(f"const now = Date.now; Date.now = () => now() + {hours} * 3600000")
    tab.open().send("The wheel", max_tokens=400, patience=1.5)
    expect(tab.status).to_have_text("Given up: its time was over")
    assert tab.told()["result"]["finish_reason"] == "expired"


def test_without_a_worker_requests_wait_and_can_be_withdrawn(new_tab: NewTab, redis_url: str) -> None:
    settings = {"namespace": "deserted", "models": ("absent",)}
    with running_gateway(redis_url, **settings) as gateway:
        tab = new_tab(gateway.url)
        tab.page.add_init_script("const now = Date.now; Date.now = () => now() + 2 * 3600000")
        tab.open()
        expect(tab.page.locator("#no-worker")).to_be_visible()
        expect(tab.page.locator("#model")).to_have_value("absent")
        tab.send("The wheel", max_tokens=5)
        expect(tab.status).to_have_text(re.compile(r"^Queued for \d+(\.\d+)? m?s"))
        expect(tab.page.locator(".queues .normal td").first).to_have_text("1")
        tab.page.click("#stop-request")
        expect(tab.status).to_have_text("Stopped before it began")
        assert tab.told()["cancelled"] is True
        expect(tab.page.locator("#send")).to_be_enabled()


def test_without_any_model_it_says_so(new_tab: NewTab, redis_url: str) -> None:
    with running_gateway(redis_url, namespace="empty") as gateway:
        tab = new_tab(gateway.url).open()
        expect(tab.page.locator("#model")).to_have_text("none is served")
        tab.send("The wheel")
        expect(tab.problem).to_contain_text("No model is served")


def test_a_gateway_that_is_gone_is_told(new_tab: NewTab, redis_url: str, worker: PacedWorker) -> None:
    del worker
    with running_gateway(redis_url) as gateway:
        tab = new_tab(gateway.url).open()
    tab.send("The wheel")
    expect(tab.problem).to_contain_text("cannot be reached")
    expect(tab.page.locator("#live-problem")).to_contain_text("does not answer")


def test_the_page_may_do_little_and_fetches_nothing_from_elsewhere(
    tab: PlaygroundPage, gateway: RunningGateway, worker: PacedWorker
) -> None:
    del worker
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    response = tab.page.goto(gateway.url)
    assert response is not None
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    tab.send("The wheel", max_tokens=5)
    tab.wait_for_end()
    assert asked
    assert all(url.startswith(gateway.url + "/") for url in asked)
