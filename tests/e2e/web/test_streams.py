"""Answers in the browser: whole, in order, once, whatever happens on the way."""

import re
from collections.abc import Callable

import pytest
from cut_proxy import cuttable
from gateway_server import RunningGateway
from paced_worker import PacedWorker
from playground_page import PlaygroundPage
from playwright.sync_api import expect
from waiting import eventually_sync

PROMPT = "The water from the mill stream turns"


@pytest.mark.always
def test_an_answer_arrives_token_by_token(tab: PlaygroundPage, worker: PacedWorker) -> None:
    worker.pause = 0.03
    tab.open().send(PROMPT, max_tokens=60)
    tab.wait_for_tokens(5)
    early, said = tab.tokens, tab.output
    assert early < 60, "it came as a whole"
    tab.wait_for_end()
    result = tab.told()["result"]
    assert tab.output == result["text"]
    assert tab.output.startswith(said)
    assert tab.tokens == len(result["tokens"]) == 60
    expect(tab.page.locator("#turns li:first-child .text")).to_have_text(PROMPT)
    assert re.fullmatch(r"[\d.]+ m?s", tab.page.locator("#fact-first").inner_text())


def test_parameters_reach_the_model(tab: PlaygroundPage, worker: PacedWorker) -> None:
    del worker
    tab.open().send(PROMPT, max_tokens=40, temperature=0)
    tab.wait_for_end()
    greedy = tab.output
    word = re.search(r"[A-Za-z]{2,}", greedy)
    assert word is not None
    stop = word[0]
    tab.page.click("#new")
    tab.send(PROMPT, max_tokens=40, temperature=0, stop=stop)
    expect(tab.status).to_have_text("Ended by itself")
    assert tab.output == greedy[: greedy.index(stop)]


def test_a_reload_in_mid_stream_loses_nothing(tab: PlaygroundPage, worker: PacedWorker) -> None:
    worker.pause = 0.04
    tab.open().send(PROMPT, max_tokens=80)
    tab.wait_for_tokens(10)
    tab.page.reload()
    tab.wait_for_tokens(20)
    tab.page.reload()
    expect(tab.page.locator("#turns li:first-child .text")).to_have_text(PROMPT)
    expect(tab.page.locator("#prompt")).to_have_value(PROMPT)
    assert tab.tokens < 80, "the stream had ended before it could be cut"
    tab.wait_for_end()
    result = tab.told()["result"]
    assert (tab.output, tab.tokens) == (result["text"], 80)
    tab.page.reload()
    tab.wait_for_end()
    assert (tab.output, tab.tokens) == (result["text"], 80), "an answer that has ended is shown again"


def test_two_tabs_follow_the_same_request(
    new_tab: Callable[[str], PlaygroundPage], gateway: RunningGateway, worker: PacedWorker
) -> None:
    worker.pause = 0.04
    first, second = new_tab(gateway.url).open(), new_tab(gateway.url)
    first.send(PROMPT, max_tokens=60)
    first.wait_for_tokens(8)
    second.open(f"#request={first.request}")
    second.wait_for_tokens(9)
    assert second.tokens < 60
    for tab in (first, second):
        tab.wait_for_end()
        assert (tab.output, tab.tokens) == (first.told()["result"]["text"], 60)


def test_a_cut_network_costs_no_token(
    new_tab: Callable[[str], PlaygroundPage], gateway: RunningGateway, worker: PacedWorker
) -> None:
    worker.pause = 0.04
    with cuttable(gateway.url) as network:
        tab = new_tab(network.url).open()
        tab.send(PROMPT, max_tokens=70)
        tab.wait_for_tokens(10)
        network.cut()
        expect(tab.page.locator("#connection")).to_contain_text("The connection is lost")
        expect(tab.page.locator("#live-state")).to_have_text("Not current")
        assert tab.tokens < 70
        network.mend()
        tab.wait_for_end()
        expect(tab.page.locator("#connection")).to_be_hidden()
        result = tab.told()["result"]
        assert (tab.output, tab.tokens) == (result["text"], 70)
        expect(tab.page.locator("#live-state")).to_have_text("Live")


def test_stop_cancels_and_frees_the_blocks(tab: PlaygroundPage, worker: PacedWorker) -> None:
    worker.pause = 0.05
    tab.open().send(PROMPT, max_tokens=400)
    tab.wait_for_tokens(5)
    assert worker.status.blocks_free < worker.status.blocks_total
    tab.page.click("#stop-request")
    expect(tab.status).to_have_text("Stopped")
    eventually_sync(lambda: worker.is_idle)
    result = tab.told()["result"]
    assert result["finish_reason"] == "cancelled"
    assert 5 <= tab.tokens == len(result["tokens"]) < 400
    assert tab.output == result["text"]
    expect(tab.page.locator("#send")).to_be_enabled()


def test_a_chat_remembers_what_was_said(tab: PlaygroundPage, worker: PacedWorker) -> None:
    del worker
    tab.open().page.get_by_label("Chat", exact=True).check(force=True)
    tab.page.fill("[name=system]", "You are a miller.")
    tab.send("How does the water come here?", max_tokens=12)
    tab.wait_for_end()
    first = tab.told()["result"]["usage"]["prompt_tokens"]
    answer = tab.output
    expect(tab.page.locator("#prompt")).to_have_value("")
    tab.send("And then?", max_tokens=12)
    tab.wait_for_end()
    texts = tab.page.locator("#turns .text").all_text_contents()
    assert texts == ["How does the water come here?", answer, "And then?", tab.output]
    assert tab.told()["result"]["usage"]["prompt_tokens"] > first + 12, "the answer was not sent along"
    tab.page.reload()
    tab.wait_for_end()
    assert tab.page.locator("#turns .text").all_text_contents() == texts


def test_text_is_never_taken_for_html(tab: PlaygroundPage, worker: PacedWorker) -> None:
    del worker
    hostile = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script><b>"
    tab.open().send(hostile, max_tokens=5)
    tab.wait_for_end()
    expect(tab.page.locator("#turns li:first-child .text")).to_have_text(hostile)
    expect(tab.page.locator("#turns").locator("img, script, b")).to_have_count(0)
    expect(tab.page).to_have_title("Headrace")
