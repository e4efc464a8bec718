"""Following a request: every token and character once, in order, whenever and wherever one joins."""

from collections.abc import AsyncIterator

import anyio
import pytest
from fake_worker import FakeWorker
from waiting import LONG, eventually

from headrace.clients import (
    AsyncClient,
    AsyncHandle,
    Delta,
    Done,
    ErrorInfo,
    Event,
    EventsLost,
    RequestFailed,
    UnknownRequest,
    Usage,
)

pytestmark = pytest.mark.anyio


class Reader:
    """Reads a stream in the background and keeps what came."""

    def __init__(self, stream: AsyncIterator[Event]) -> None:
        self.events: list[Event] = []
        self._stream = stream

    @property
    def deltas(self) -> list[Delta]:
        return [event for event in self.events if isinstance(event, Delta)]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def tokens(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.tokens]

    async def run(self) -> None:
        with anyio.fail_after(LONG):
            async for event in self._stream:
                self.events.append(event)


async def subscribed(worker: FakeWorker, handle: AsyncHandle, followers: int = 1) -> None:
    channel = worker.keys.channel(handle.id)
    await eventually(lambda: worker.redis.pubsub_numsub(channel)[0][1] == followers)


async def test_tokens_come_while_they_are_made(client: AsyncClient, worker: FakeWorker) -> None:
    handle = await client.submit("Hello", metadata={"order": 7})
    reader = Reader(aiter(handle))
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await anyio.to_thread.run_sync(worker.take)
        for number, text in enumerate(["One", " two", "", " thr😀"]):
            worker.emit(handle.id, text)
            await eventually(lambda number=number: len(reader.events) == number + 1)
        done = worker.finish(handle.id, metadata={"order": 7})
    assert reader.text == "One two thr😀"
    assert reader.tokens == [1000, 1001, 1002, 1003]
    assert reader.events[-1] == done
    assert [type(event) for event in reader.events].count(Done) == 1


async def test_one_who_joins_late_gets_the_beginning_from_the_log(
    client: AsyncClient, worker: FakeWorker
) -> None:
    handle = await client.submit("Hello")
    worker.take()
    for text in "abc":
        worker.emit(handle.id, text)
    early, late = Reader(aiter(handle)), Reader(aiter(client.attach(handle.id)))
    async with anyio.create_task_group() as group:
        group.start_soon(early.run)
        await eventually(lambda: early.text == "abc")
        worker.emit(handle.id, "d")
        group.start_soon(late.run)
        await eventually(lambda: late.text == "abcd")
        worker.emit(handle.id, "e")
        worker.finish(handle.id)
    assert early.text == late.text == "abcde"
    assert early.tokens == late.tokens


async def test_the_result_can_be_had_after_the_end_and_elsewhere(
    client: AsyncClient, redis_url: str, worker: FakeWorker
) -> None:
    handle = await client.submit("Hello", logprobs=1)
    worker.take()
    logprobs = [(-0.5, [(1000, -0.5)]), (-1.0, [(5, -0.25)])]
    worker.emit(handle.id, "Hi ", logprobs=logprobs[:1])
    worker.emit(handle.id, "there", logprobs=logprobs[1:])
    worker.finish(handle.id, "length", metadata=["x"])
    async with AsyncClient(redis_url) as elsewhere:
        result = await elsewhere.attach(handle.id).result()
    assert result == await handle.result()
    assert (result.text, result.tokens, result.finish_reason) == ("Hi there", [1000, 1001], "length")
    assert result.usage == Usage(prompt_tokens=7, completion_tokens=2, cached_tokens=0)
    assert (result.logprobs, result.metadata, result.error) == (logprobs, ["x"], None)
    timings = result.timings
    assert timings.created and timings.started and timings.finished
    assert timings.created <= timings.started <= timings.finished
    assert timings.took is not None and timings.took >= (timings.waited or 0) >= 0


async def test_a_result_once_had_outlives_the_request(client: AsyncClient, worker: FakeWorker) -> None:
    handle = await client.submit("Hello")
    worker.take()
    worker.emit(handle.id, "Hi")
    worker.finish(handle.id)
    assert await handle.text() == "Hi"
    worker.redis.flushall()
    assert await handle.text() == "Hi"


async def test_a_stream_goes_on_where_an_earlier_one_stopped(client: AsyncClient, worker: FakeWorker) -> None:
    handle = await client.submit("Hello")
    worker.take()
    for text in ["Wo", "", "rld"]:
        worker.emit(handle.id, text)
    worker.finish(handle.id)
    events = [event async for event in handle.events(seq=2, pos=3)]
    assert events[0] == Delta(seq=2, pos=3, epoch=1, tokens=[1002], text="ld")
    assert isinstance(events[1], Done) and len(events) == 2


async def test_a_message_that_was_not_delivered_is_read_from_the_log(
    client: AsyncClient, worker: FakeWorker
) -> None:
    handle = await client.submit("Hello")
    worker.take()
    reader = Reader(aiter(handle))
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await subscribed(worker, handle)
        worker.emit(handle.id, "a")
        worker.emit(handle.id, "b", publish=False)
        worker.emit(handle.id, "c", publish=False)
        worker.emit(handle.id, "d")
        await eventually(lambda: reader.text == "abcd")
        worker.finish(handle.id)
    assert reader.tokens == [1000, 1001, 1002, 1003]


async def test_silence_makes_it_look_into_the_log(client: AsyncClient, worker: FakeWorker) -> None:
    """Not one message, not even the end, comes through."""
    handle = await client.submit("Hello")
    worker.take()
    reader = Reader(aiter(handle))
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await subscribed(worker, handle)
        worker.emit(handle.id, "a", publish=False)
        await eventually(lambda: reader.text == "a")
        worker.emit(handle.id, "b", publish=False)
        worker.finish(handle.id, publish=False)
    assert reader.text == "ab"
    assert isinstance(reader.events[-1], Done)


async def test_text_released_late_is_not_lost_with_its_message(
    client: AsyncClient, worker: FakeWorker
) -> None:
    """The last characters belong to a token that is there already, so no count of tokens shows the gap."""
    handle = await client.submit("Hello")
    worker.take()
    reader = Reader(aiter(handle))
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await subscribed(worker, handle)
        worker.emit(handle.id, "so ")
        worker.emit(handle.id, "")
        await eventually(lambda: len(reader.tokens) == 2)
        worker.release_held_text(handle.id, "<s", publish=False)
        worker.finish(handle.id)
    assert reader.text == "so <s"
    assert reader.tokens == [1000, 1001]


async def test_duplicates_and_stragglers_add_nothing(client: AsyncClient, worker: FakeWorker) -> None:
    handle = await client.submit("Hello")
    worker.take()
    reader = Reader(aiter(handle))
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await subscribed(worker, handle)
        sent = [worker.emit(handle.id, text) for text in "abc"]
        for event in reversed(sent):
            worker.send(handle.id, event, log=False)
        worker.send(handle.id, Delta(1, 1, 2, [1001, 1002, 1003], "bcd"), log=False)
        worker.emit(handle.id, "d", publish=False)
        worker.finish(handle.id)
    assert reader.text == "abcd"
    assert reader.tokens == [1000, 1001, 1002, 1003]


async def test_a_log_rewritten_while_it_is_followed_is_the_same_log(
    client: AsyncClient, worker: FakeWorker
) -> None:
    """Its entries may even have ids that come before those read already."""
    handle = await client.submit("Hello")
    worker.take()
    log = worker.keys.events(handle.id)
    worker.redis.xadd(log, {"junk": "of another version"}, id="9999999999999-5")
    worker.emit(handle.id, "a")
    worker.emit(handle.id, "b")
    reader = Reader(aiter(handle))
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await eventually(lambda: reader.text == "ab")
        worker.emit(handle.id, "c", publish=False)
        worker.emit(handle.id, "d", publish=False)
        worker.finish(handle.id)
    assert worker.redis.xlen(log) == 2
    assert reader.text == "abcd"


async def test_a_log_of_many_pages_is_read_whole(client: AsyncClient, worker: FakeWorker) -> None:
    handle = await client.submit("Hello")
    worker.take()
    for number in range(1200):
        worker.emit(handle.id, f"{number} ")
    worker.finish(handle.id, rewrite=False)
    assert await handle.text() == "".join(f"{number} " for number in range(1200))


async def test_a_reader_slower_than_its_mailbox_reads_the_log(
    client: AsyncClient, worker: FakeWorker
) -> None:
    handle = await client.submit("Hello")
    worker.take()
    worker.emit(handle.id, "0 ")
    stream = aiter(handle)
    first = await anext(stream)
    assert isinstance(first, Delta)
    await subscribed(worker, handle)
    big = "x" * 100_000
    for _ in range(30):
        await anyio.to_thread.run_sync(worker.emit, handle.id, big)
    worker.finish(handle.id)
    rest = "".join([event.text async for event in stream if isinstance(event, Delta)])
    assert rest == 30 * big


async def test_what_another_version_says_is_passed_over(client: AsyncClient, worker: FakeWorker) -> None:
    handle = await client.submit("Hello")
    worker.take()
    reader = Reader(aiter(handle))
    log, channel = worker.keys.events(handle.id), worker.keys.channel(handle.id)
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await subscribed(worker, handle)
        for data in (b"\x81\xa4type\xa8progress", b"\xc1 no msgpack", b""):
            worker.redis.xadd(log, {"e": data})
            worker.redis.publish(channel, data)
        worker.emit(handle.id, "a")
        worker.finish(handle.id, rewrite=False)
    assert reader.text == "a"


@pytest.mark.parametrize("reason", ["cancelled", "expired", "error"])
async def test_text_of_a_request_that_ended_early_raises_with_what_there_is(
    client: AsyncClient, worker: FakeWorker, reason: str
) -> None:
    handle = await client.submit("Hello")
    worker.take()
    worker.emit(handle.id, "Hal")
    error = ErrorInfo("model_failed", "out of luck") if reason == "error" else None
    worker.finish(handle.id, reason, error=error)
    with pytest.raises(RequestFailed, match="out of luck" if error else reason) as caught:
        await handle.text()
    assert caught.value.result.text == "Hal"
    assert (await handle.result()).error == error


async def test_an_unknown_id_is_said_to_be_unknown(client: AsyncClient) -> None:
    handle = client.attach("never-was")
    with anyio.fail_after(LONG):
        with pytest.raises(UnknownRequest, match="never-was"):
            await handle.text()
        with pytest.raises(UnknownRequest):
            await handle.status()
        with pytest.raises(UnknownRequest):
            await client.attach("never-was", wait=0.3).text()
    assert not await handle.cancel()


async def test_a_request_that_expires_while_followed_is_said_to_be_unknown(
    client: AsyncClient, worker: FakeWorker
) -> None:
    handle = await client.submit("Hello")
    worker.take()
    worker.emit(handle.id, "a")
    stream = aiter(handle)
    await anext(stream)
    worker.redis.delete(worker.keys.request(handle.id), worker.keys.events(handle.id))
    with anyio.fail_after(LONG), pytest.raises(UnknownRequest):
        await anext(stream)


async def test_a_log_that_expired_before_its_state_is_unknown_too(
    client: AsyncClient, worker: FakeWorker
) -> None:
    handle = await client.submit("Hello")
    worker.take()
    worker.emit(handle.id, "a")
    worker.finish(handle.id)
    worker.redis.delete(worker.keys.events(handle.id))
    with anyio.fail_after(LONG), pytest.raises(UnknownRequest):
        await handle.text()


async def test_a_damaged_log_of_an_ended_request_is_reported(client: AsyncClient, worker: FakeWorker) -> None:
    handle = await client.submit("Hello")
    worker.take()
    for text in "abc":
        worker.emit(handle.id, text)
    worker.finish(handle.id, rewrite=False)
    log = worker.keys.events(handle.id)
    worker.redis.xdel(log, worker.redis.xrange(log)[1][0])
    with anyio.fail_after(LONG), pytest.raises(EventsLost):
        await handle.text()


async def test_the_end_is_believed_even_when_the_log_is_gone_already(
    client: AsyncClient, worker: FakeWorker
) -> None:
    handle = await client.submit("Hello")
    worker.take()
    worker.emit(handle.id, "a")
    stream = aiter(handle)
    await anext(stream)
    worker.redis.delete(worker.keys.request(handle.id), worker.keys.events(handle.id))
    done = Done(1, 1, "stop", Usage())
    worker.send(handle.id, done, log=False)
    with anyio.fail_after(LONG):
        assert await anext(stream) == done


async def test_many_are_followed_over_one_connection(client: AsyncClient, worker: FakeWorker) -> None:
    handles = [await client.submit("Hello") for _ in range(50)]
    readers = [Reader(aiter(handle)) for handle in handles]
    async with anyio.create_task_group() as group:
        for reader in readers:
            group.start_soon(reader.run)
        for handle in handles:
            await subscribed(worker, handle)
            worker.take()
        subscribers = [c for c in worker.redis.client_list() if int(c["sub"]) > 0]
        assert len(subscribers) == 1 and int(subscribers[0]["sub"]) == 50
        for text in ["a", "b"]:
            for handle in handles:
                worker.emit(handle.id, text)
        for handle in handles:
            worker.finish(handle.id)
    assert [reader.text for reader in readers] == ["ab"] * 50
    await eventually(lambda: all(int(c["sub"]) == 0 for c in worker.redis.client_list()))


async def test_leaving_a_stream_gives_its_subscription_back(client: AsyncClient, worker: FakeWorker) -> None:
    handle = await client.submit("Hello")
    worker.take()
    worker.emit(handle.id, "a")
    async for _ in handle:
        break
    await subscribed(worker, handle, followers=0)


async def test_a_handle_that_is_not_read_holds_no_subscription(
    client: AsyncClient, worker: FakeWorker
) -> None:
    handle = await client.submit("Hello")
    other = await client.submit("Hello")
    reader = Reader(aiter(other))
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await subscribed(worker, other)
        assert worker.redis.pubsub_numsub(worker.keys.channel(handle.id))[0][1] == 0
        worker.claim(other.id)
        worker.finish(other.id)


async def test_a_submission_that_got_no_further_than_its_state_is_unknown_and_can_be_completed(
    client: AsyncClient, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a loss of power may leave it behind; nothing else would ever end the wait."""
    monkeypatch.setattr("headrace.clients.follow._ENQUEUED_WITHIN", 0.5)
    handle = await client.submit("Hello", id="half", max_tokens=1)
    worker.redis.hdel(worker.keys.request("half"), "entry")
    worker.redis.delete(worker.keys.queue("m", "normal", 0))
    with anyio.fail_after(LONG), pytest.raises(UnknownRequest):
        await handle.result()
    again = await client.submit("Hello", id="half", max_tokens=1)
    assert worker.redis.xlen(worker.keys.queue("m", "normal", 0)) == 1
    # From here on it waits as long as it takes.
    with anyio.move_on_after(3) as waiting:
        await again.result()
    assert waiting.cancelled_caught
