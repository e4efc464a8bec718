"""The page without a mouse, without eyes, on a small screen, in the dark."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from gateway_server import RunningGateway
from paced_worker import PacedWorker
from playground_page import PlaygroundPage
from playwright.sync_api import Browser, expect


def test_everything_can_be_done_from_the_keyboard(tab: PlaygroundPage, worker: PacedWorker) -> None:
    worker.pause = 0.05
    page, keyboard = tab.open().page, tab.page.keyboard
    tab.set(max_tokens=300, ignore_eos=True)
    page.reload()
    expect(page.locator("#live-state")).to_have_text("Live")
    keyboard.press("Tab")
    expect(page.locator(".skip").first).to_be_focused()
    keyboard.press("Enter")
    keyboard.type("The wheel")
    expect(page.locator("#prompt")).to_have_value("The wheel")
    keyboard.press("Control+Enter")
    tab.wait_for_tokens(6)
    page.get_by_role("link", name="Skip to the live view").press("Enter")
    expect(page.locator("#live")).to_be_focused()
    assert tab.request, "the address has the request no more"

    page.locator("#open-keyboard").focus()
    keyboard.press("Enter")
    expect(page.locator("#keyboard-dialog")).to_be_visible()
    keyboard.press("Escape")
    expect(page.locator("#keyboard-dialog")).to_be_hidden()
    expect(page.locator("#open-keyboard")).to_be_focused()
    expect(tab.status).to_have_text("Running")

    strip = page.locator("#strip")
    strip.focus()
    keyboard.press("Home")
    keyboard.press("ArrowRight")
    expect(strip).to_have_attribute("aria-valuetext", re.compile(r"^tokens? .*\d m?s after the one before: "))
    expect(page.locator("#strip-caption")).to_have_text(re.compile("^token"))

    keyboard.press("Alt+v")
    expect(page.locator("#live")).to_be_focused()
    keyboard.press("Alt+o")
    expect(page.locator("#output")).to_be_focused()
    keyboard.press("Escape")
    expect(tab.status).to_have_text("Stopped")
    keyboard.press("Alt+n")
    expect(page.locator("#prompt")).to_be_focused()
    expect(page.locator("#turns li")).to_have_count(0)


def test_a_sequence_row_shows_its_blocks_on_demand(tab: PlaygroundPage, worker: PacedWorker) -> None:
    worker.pause = 0.1  # it runs until the test ends
    page = tab.open().page
    tab.send("The wheel", max_tokens=400)
    button = page.locator(".sequences button").first
    expect(button).to_be_visible()
    button.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "true")


def test_the_stream_is_read_out_in_sentences_and_its_end_is_told(
    tab: PlaygroundPage, worker: PacedWorker
) -> None:
    worker.pause = 0.02
    page = tab.open().page
    spoken = page.locator("#spoken")
    expect(spoken).to_have_attribute("aria-live", "polite")
    tab.send("The wheel", max_tokens=60)
    tab.wait_for_tokens(10)
    expect(page.locator("#output")).to_have_attribute("aria-busy", "true")
    tab.wait_for_end()
    expect(spoken).to_contain_text("Reached the limit of tokens, after 60 tokens.")
    expect(page.locator("#output")).to_have_attribute("aria-busy", "false")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_it_passes_an_accessibility_checker(
    scheme: str, width: int, browser: Browser, gateway: RunningGateway, worker: PacedWorker
) -> None:
    worker.pause = 0.05
    # The checker is a script that the page's own policy would not let in.
    context = browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
        bypass_csp=True,
        reduced_motion="reduce",
    )
    with context, context.new_page() as page:
        tab = PlaygroundPage(page, gateway.url).open()
        tab.send("The wheel", max_tokens=200)
        tab.wait_for_tokens(3)
        expect(page.locator(".sequences tbody tr")).to_have_count(1)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
        running = page.evaluate(
            "document.getAnimations().filter((one) => one.playState === 'running').length"
        )
        assert running == 0, "something moves although motion is to be reduced"
        found = Axe().run(page).response["violations"]
        assert [(rule["id"], [node["target"] for node in rule["nodes"]]) for rule in found] == []
        page.keyboard.press("Escape")
        expect(tab.status).to_have_text("Stopped")


def test_a_chosen_theme_is_kept(tab: PlaygroundPage, worker: PacedWorker) -> None:
    del worker
    page = tab.open().page
    back = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    page.click("#theme")
    page.click("#theme")
    expect(page.locator("#theme")).to_have_text("Theme: dark")
    dark = page.evaluate(back)
    assert dark != light
    page.reload()
    expect(page.locator("#theme")).to_have_text("Theme: dark")
    assert page.evaluate(back) == dark
