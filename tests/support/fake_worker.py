"""A worker without a model: it takes requests and logs and publishes what a test tells it to.

It speaks the wire contract with plain commands, so that clients are tested against the contract and not
against the real worker's scripts.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from headrace.clients.protocol import (
    GROUP,
    Delta,
    Done,
    ErrorInfo,
    Event,
    FinishReason,
    Keys,
    Request,
    TokenLogprobs,
    Usage,
    decode_request,
    encode_event,
)
from headrace.clients.redis_url import Location

TTL = 600


class FakeWorker:
    """Serves ``model`` on the server at ``url``; rides out its restarts."""

    def __init__(self, url: str, model: str = "m", namespace: str = "headrace") -> None:
        self.keys = Keys(namespace, Location.of(url).database)
        self.model = model
        retry = Retry(ExponentialWithJitterBackoff(cap=0.2, base=0.01), 200)
        self.redis = redis.Redis.from_url(
            url,
            protocol=2,
            socket_timeout=5,
            retry=retry,
            retry_on_error=[redis.ConnectionError, redis.TimeoutError],
        )
        self._sent: dict[str, list[Delta]] = {}
        self._epochs: dict[str, int] = {}
        self._taken: deque[tuple[bytes, bytes, dict[bytes, bytes]]] = deque()

    def close(self) -> None:
        self.redis.close()

    def take(self, timeout: float = 20) -> Request:
        """Claim the next request, waiting for one."""
        streams = dict.fromkeys(self.keys.queues(self.model), ">")
        give_up = time.monotonic() + timeout
        while time.monotonic() < give_up:
            if self._taken:
                return self._claim_first()
            try:
                reply = self.redis.xreadgroup(GROUP, "fake", streams, count=1, block=50)
            except redis.ResponseError as error:
                assert "NOGROUP" in str(error)
                self._create_groups()
                continue
            # One of each queue that has any.
            self._taken += [(queue, *entry) for queue, entries in reply for entry in entries]
        raise AssertionError("no request came")

    def _claim_first(self) -> Request:
        queue, entry_id, fields = self._taken.popleft()
        request = decode_request(fields[b"r"])
        self.claim(request.id, entry_id)
        with self.redis.pipeline() as pipeline:
            pipeline.xack(queue, GROUP, entry_id)
            pipeline.xdel(queue, entry_id)
            pipeline.execute()
        return request

    def _create_groups(self) -> None:
        for queue in self.keys.queues(self.model):
            try:
                self.redis.xgroup_create(queue, GROUP, id="0", mkstream=True)
            except redis.ResponseError as error:
                assert "BUSYGROUP" in str(error)

    def claim(self, request_id: str, entry_id: bytes | str = "0-1") -> None:
        """Take the request; once more, as another worker does when its worker was killed."""
        state = self.keys.request(request_id)
        self._sent.setdefault(request_id, [])
        with self.redis.pipeline() as pipeline:
            pipeline.hincrby(state, "epoch", 1)
            pipeline.hincrby(state, "attempts", 1)
            now = self._now()
            claim = {"status": "running", "worker": "fake", "claimed": entry_id, "started": now}
            pipeline.hset(state, mapping=claim)
            pipeline.hsetnx(state, "created", now)
            pipeline.expire(state, TTL)
            self._epochs[request_id] = pipeline.execute()[0]

    def emit(
        self,
        request_id: str,
        text: str,
        tokens: list[int] | None = None,
        *,
        logprobs: list[TokenLogprobs] | None = None,
        log: bool = True,
        publish: bool = True,
    ) -> Delta:
        """One delta after all earlier ones; a token per call unless ``tokens`` says otherwise."""
        sent = self._sent.setdefault(request_id, [])
        seq = sum(len(delta.tokens) for delta in sent)
        pos = sum(len(delta.text) for delta in sent)
        epoch = self._epochs.get(request_id, 1)
        delta = Delta(seq, pos, epoch, [1000 + seq] if tokens is None else tokens, text, logprobs)
        sent.append(delta)
        self.send(request_id, delta, log=log, publish=publish)
        return delta

    def release_held_text(self, request_id: str, text: str, *, publish: bool = True) -> Delta:
        """The last token once more, with text that was held back: no stop string after all."""
        sent = self._sent[request_id]
        last = sent[-1]
        pos = sum(len(delta.text) for delta in sent)
        delta = Delta(last.seq + len(last.tokens) - 1, pos, 1, last.tokens[-1:], text)
        sent.append(Delta(last.seq + len(last.tokens), pos, 1, [], text))
        self.send(request_id, delta, publish=publish)
        return delta

    def send(self, request_id: str, event: Event, *, log: bool = True, publish: bool = True) -> None:
        data = encode_event(event)
        with self.redis.pipeline() as pipeline:
            if log:
                pipeline.xadd(self.keys.events(request_id), {"e": data})
                pipeline.expire(self.keys.events(request_id), TTL)
            if publish:
                pipeline.publish(self.keys.channel(request_id), data)
            pipeline.execute()

    def finish(
        self,
        request_id: str,
        reason: FinishReason = "stop",
        *,
        metadata: object = None,
        error: ErrorInfo | None = None,
        rewrite: bool = True,
        publish: bool = True,
    ) -> Done:
        """The end: the log is rewritten as one delta and ``done`` (or only ended), and expires."""
        sent = self._sent.setdefault(request_id, [])
        tokens = [token for delta in sent for token in delta.tokens]
        epoch = self._epochs.get(request_id, 1)
        done = Done(len(tokens), epoch, reason, Usage(7, len(tokens), 0), metadata, error)
        log, state = self.keys.events(request_id), self.keys.request(request_id)
        with self.redis.pipeline() as pipeline:
            if rewrite and tokens:
                logprobs = [item for delta in sent for item in delta.logprobs or []]
                text = "".join(delta.text for delta in sent)
                pipeline.delete(log)
                everything = Delta(0, 0, 1, tokens, text, logprobs or None)
                pipeline.xadd(log, {"e": encode_event(everything)})
            pipeline.xadd(log, {"e": encode_event(done)})
            ended = {"status": "finished", "finish_reason": reason, "finished": self._now()}
            pipeline.hset(state, mapping=ended)
            pipeline.expire(log, TTL)
            pipeline.expire(state, TTL)
            if publish:
                pipeline.publish(self.keys.channel(request_id), encode_event(done))
            pipeline.execute()
        return done

    def cancelled(self, request_id: str) -> bool:
        return self.redis.hget(self.keys.request(request_id), "cancel") is not None

    def _now(self) -> int:
        seconds, microseconds = self.redis.time()
        return seconds * 1000 + microseconds // 1000


def serve(worker: FakeWorker, answer: Callable[[FakeWorker, Request], None]) -> Callable[[], None]:
    """Answer requests in a thread, one after the other, until the returned function is called."""
    stopping = threading.Event()

    def loop() -> None:
        while not stopping.is_set():
            try:
                request = worker.take(timeout=0.05)
            except AssertionError:
                continue
            answer(worker, request)

    thread = threading.Thread(target=loop, name="fake worker", daemon=True)
    thread.start()

    def stop() -> None:
        stopping.set()
        thread.join()

    return stop


def echo(worker: FakeWorker, request: Request) -> None:
    """The prompt, word by word, cut at ``max_tokens`` words; stops when cancelled."""
    words = [word + " " for word in (request.prompt or "").split()]
    for word in words[: request.max_tokens]:
        if worker.cancelled(request.id):
            worker.finish(request.id, "cancelled", metadata=request.metadata)
            return
        worker.emit(request.id, word)
    reason: FinishReason = "stop" if len(words) <= request.max_tokens else "length"
    worker.finish(request.id, reason, metadata=request.metadata)
