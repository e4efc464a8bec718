"""The web page as a test uses it."""

import re
from dataclasses import dataclass
from typing import Any

import httpx
from playwright.sync_api import Locator, Page, expect
from waiting import eventually_sync

ENDED = re.compile("^(Ended by itself|Reached the limit of tokens)$")
LONG = 30_000
"""Milliseconds that anything may take on a machine with other things to do."""


@dataclass
class PlaygroundPage:
    page: Page
    url: str
    headers: dict[str, str] | None = None

    @property
    def status(self) -> Locator:
        return self.page.locator("#status")

    @property
    def problem(self) -> Locator:
        return self.page.locator("#problem")

    @property
    def output(self) -> str:
        """What the model has said in the last turn."""
        return self.page.locator("#turns li:last-child .text").text_content() or ""

    @property
    def tokens(self) -> int:
        return int((self.page.locator("#fact-tokens").text_content() or "0").replace(",", ""))

    @property
    def request(self) -> str:
        return self.page.url.partition("#request=")[2]

    def open(self, fragment: str = "") -> "PlaygroundPage":
        self.page.goto(self.url + "/" + fragment)
        expect(self.page.locator("#live-state")).not_to_have_text("Connecting")
        return self

    def set(self, **parameters: Any) -> None:
        """Fill in parameters by their names."""
        self.page.locator("#parameters").evaluate("details => { details.open = true }")
        for name, value in parameters.items():
            field = self.page.locator(f"#form [name={name}]")
            if isinstance(value, bool):
                field.set_checked(value)
            else:
                field.fill(str(value))

    def send(self, text: str, **parameters: Any) -> None:
        self.set(**{"ignore_eos": True, "temperature": 0.7, "seed": 7} | parameters)
        self.page.fill("#prompt", text)
        self.page.click("#send")

    def wait_for_tokens(self, count: int) -> None:
        eventually_sync(lambda: self.tokens >= count)

    def wait_for_end(self) -> None:
        expect(self.status).to_have_text(ENDED)

    def told(self) -> dict[str, Any]:
        """The request that the page shows, as the gateway tells it."""
        response = httpx.get(f"{self.url}/v1/requests/{self.request}", headers=self.headers, timeout=30)
        return response.raise_for_status().json()
