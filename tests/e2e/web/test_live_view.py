"""The live view shows what queue and worker really do."""

import re

import httpx
import redis
from gateway_server import RunningGateway
from paced_worker import PacedWorker
from playground_page import PlaygroundPage
from playwright.sync_api import expect


def submit(gateway: RunningGateway, count: int, **fields: object) -> list[str]:
    """Ids of as many requests."""
    body = {"model": "tiny", "prompt": "The stone " * 12, "max_tokens": 200, "ignore_eos": True} | fields
    answers = [httpx.post(f"{gateway.url}/v1/requests", json=body, timeout=30) for _ in range(count)]
    return [answer.raise_for_status().json()["id"] for answer in answers]


def cancel(gateway: RunningGateway, ids: list[str]) -> None:
    for request_id in ids:
        httpx.delete(f"{gateway.url}/v1/requests/{request_id}", timeout=30).raise_for_status()


def test_a_load_is_seen_from_queue_to_blocks(
    tab: PlaygroundPage, gateway: RunningGateway, worker: PacedWorker
) -> None:
    page = tab.open().page
    expect(page.locator("#live-state")).to_have_text("Live")
    worker.pause = 0.06
    page.select_option("[name=priority]", "high")
    tab.send("The wheel", max_tokens=150)
    ids = submit(gateway, 7, priority="low")
    rows = page.locator(".sequences tbody tr")
    expect(rows.filter(has_text="decode")).to_have_count(4)
    own = rows.filter(has_text="yours")
    expect(own).to_have_count(1)
    expect(own.locator("code")).to_have_text(tab.request[-8:])
    expect(own.locator(".words")).to_have_text(re.compile(r"^\d+ of 150 after \d+"))
    expect(page.locator("#live-running")).to_have_text("4")
    waiting = page.locator(".queues .low td").first
    expect(waiting).to_have_text(re.compile("^[1-9]"))
    expect(page.locator("canvas.blocks")).to_have_attribute(
        "aria-label", re.compile(r"^\d+ blocks, \d+ free")
    )
    assert not page.locator("#live-blocks").inner_text().startswith("0 of")
    expect(page.locator("#live-first")).to_have_text(re.compile(r"\d m?s$"))
    cancel(gateway, [*ids, tab.request])
    expect(rows).to_have_count(0)
    expect(page.locator("#live-blocks")).to_have_text(re.compile("^0 of "))
    expect(page.get_by_text("Nothing runs.")).to_be_visible()


def test_long_prompts_are_seen_in_prefill(
    tab: PlaygroundPage, gateway: RunningGateway, worker: PacedWorker
) -> None:
    page = tab.open().page
    worker.pause = 0.4
    submit(gateway, 1, prompt="water wheel stone mill " * 30, max_tokens=4)
    row = page.locator(".sequences tbody tr[data-state=prefill]")
    expect(row.locator(".words")).to_have_text(re.compile(r"^\d+ of \d{3}"))


def test_it_can_be_paused(tab: PlaygroundPage, gateway: RunningGateway, worker: PacedWorker) -> None:
    page = tab.open().page
    expect(page.locator("#live-state")).to_have_text("Live")
    # The gateway may show at first what it saw last, while another test ran something.
    expect(page.get_by_text("Nothing runs.")).to_be_visible()
    page.click("#pause")
    expect(page.locator("#live-state")).to_have_text("Paused")
    worker.pause = 0.05
    ids = submit(gateway, 1)
    tab.send("The wheel", max_tokens=40)
    tab.wait_for_end()
    expect(page.locator(".sequences tbody tr")).to_have_count(0)
    expect(page.locator("#live-state")).to_have_text("Paused")
    page.click("#pause")
    expect(page.locator(".sequences tbody tr")).to_have_count(1)
    cancel(gateway, ids)


def test_nothing_more_is_shown_once_paused(tab: PlaygroundPage) -> None:
    """Not even what had come with the last piece of the stream."""
    shown = tab.open().page.evaluate("""async () => {
        const { lasting } = await import("./stream.js");
        const stop = new AbortController();
        const open = async () => new Blob(["data: 1\\n\\ndata: 2\\n\\ndata: 3\\n\\n"]).stream();
        const shown = [];
        for await (const value of lasting(open, (event) => event.data, stop.signal, () => {})) {
            shown.push(value);
            await new Promise((resolve) => setTimeout(resolve));
            if (value === "2") stop.abort();
        }
        return shown;
    }""")
    assert shown == ["1", "2"]


def test_what_workers_say_of_themselves_is_text(
    tab: PlaygroundPage, gateway: RunningGateway, redis_url: str, worker: PacedWorker
) -> None:
    del gateway, worker
    name = "<img src=x onerror=document.title=1>"
    with redis.Redis.from_url(redis_url) as client:
        key = f"headrace:worker:{{tiny}}:{name}"
        client.hset(
            key, mapping={"running": 1, "version": "<b>1</b>", "sequences": "[{}]", "block_map": "<i>"}
        )
        client.expire(key, 60)
        page = tab.open().page
        expect(page.locator(".worker h4").filter(has_text="onerror")).to_have_text(name)
        expect(page.locator(".worker").locator("img, b")).to_have_count(0)
        client.delete(key)
    expect(page.locator(".worker")).to_have_count(1)
