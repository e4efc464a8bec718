"""Reading a stream of the JavaScript client in the background."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
from fake_worker import FakeWorker
from js_client import JsHandle
from waiting import LONG, eventually


class JsReader:
    """Keeps what came, and insists on the order of it."""

    def __init__(self, stream: AsyncIterator[dict[str, Any]]) -> None:
        self.events: list[dict[str, Any]] = []
        self.text = ""
        self.tokens: list[int] = []
        self._stream = stream

    @property
    def ends(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == "done"]

    async def run(self) -> None:
        with anyio.fail_after(2 * LONG):
            async for event in self._stream:
                assert not self.ends, "an event after done"
                self.events.append(event)
                if event["type"] == "delta":
                    assert (event["seq"], event["pos"]) == (len(self.tokens), len(self.text))
                    self.text += event["text"]
                    self.tokens += event["tokens"]


async def subscribed(worker: FakeWorker, handle: JsHandle, followers: int = 1) -> None:
    channel = worker.keys.channel(handle.id)
    await eventually(lambda: worker.redis.pubsub_numsub(channel)[0][1] == followers)
