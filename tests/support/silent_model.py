"""A model whose answers have silences at every place, each until the gateway has given signs of life."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from cut_proxy import CutProxy
from fake_worker import FakeWorker, serve
from gateway_server import announce, running_gateway

from headrace.clients.protocol import Request

WORDS: Final = ("The ", "mill ", "stream ", "turns")
TEXT: Final = "".join(WORDS)
_SIGNS: Final = 3


@dataclass
class SilentModel:
    """Model ``m`` at ``url``, for one reader at a time."""

    url: str = ""
    _signs: int = 0
    _closed: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def heard(self, data: bytes) -> None:
        with self._changed:
            self._signs += data.count(b": alive")
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def answer(self, worker: FakeWorker, request: Request) -> None:
        """Silent before the first word, between words and before the end; one worker is killed on the way."""
        for number, word in enumerate(WORDS):
            self._be_silent()
            if number == 2:
                worker.claim(request.id)
                self._be_silent()
            worker.emit(request.id, word)
        self._be_silent()
        worker.finish(request.id)

    def _be_silent(self) -> None:
        with self._changed:
            enough = self._signs + _SIGNS
            assert self._changed.wait_for(lambda: self._closed or self._signs >= enough, 60), (
                "no sign of life"
            )


@contextmanager
def silent_model(redis_url: str) -> Iterator[SilentModel]:
    model = SilentModel()
    worker = FakeWorker(redis_url)
    announce(worker)
    stop = serve(worker, model.answer)
    with running_gateway(redis_url, heartbeat=0.03) as gateway:
        proxy = CutProxy(gateway.url, model.heard)
        model.url = proxy.url
        try:
            yield model
        finally:
            model.close()
            proxy.close()
            stop()
            worker.close()
