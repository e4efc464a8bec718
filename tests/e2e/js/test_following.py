"""Following from JavaScript: every token and character once, in order, whenever and wherever one joins."""

import anyio
import pytest
from fake_worker import FakeWorker
from js_client import JsClient, JsError, JsProcess
from js_reader import JsReader, subscribed
from waiting import LONG, eventually

from headrace.clients import AsyncClient, Delta, Done, ErrorInfo, Usage

pytestmark = pytest.mark.anyio


async def test_tokens_come_while_they_are_made(client: JsClient, worker: FakeWorker) -> None:
    handle = await client.submit(prompt="Hello", metadata={"order": 7})
    reader = JsReader(handle.events())
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await anyio.to_thread.run_sync(worker.take)
        for number, text in enumerate(["One", " two", "", " thr😀", "🌊e\u0301"]):
            worker.emit(handle.id, text)
            await eventually(lambda number=number: len(reader.events) == number + 1)
        worker.finish(handle.id, metadata={"order": 7})
    assert reader.text == "One two thr😀🌊e\u0301"
    assert reader.tokens == [1000, 1001, 1002, 1003, 1004]
    (done,) = reader.ends
    assert (done["finish_reason"], done["metadata"], done["seq"]) == ("stop", {"order": 7}, 5)
    assert done["usage"] == {"prompt_tokens": 7, "completion_tokens": 5, "cached_tokens": 0}


async def test_one_who_joins_late_gets_the_beginning_from_the_log(
    client: JsClient, worker: FakeWorker
) -> None:
    handle = await client.submit(prompt="Hello")
    worker.take()
    for text in "abc":
        worker.emit(handle.id, text)
    late_handle = await client.attach(handle.id)
    early, late = JsReader(handle.events()), JsReader(late_handle.events())
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


async def test_results_are_those_of_the_python_client(
    client: JsClient, redis_url: str, worker: FakeWorker
) -> None:
    handle = await client.submit(prompt="Hello", logprobs=1)
    worker.take()
    logprobs = [(-0.5, [(1000, -0.5)]), (-1.0, [(5, -0.25)])]
    worker.emit(handle.id, "Hi ", logprobs=logprobs[:1])
    worker.emit(handle.id, "the😀", logprobs=logprobs[1:])
    worker.finish(handle.id, "length", metadata=["x", 1 << 60, 2.5, None, {"a": "水"}])
    async with AsyncClient(redis_url) as python:
        expected = await python.attach(handle.id).result()
    result = await handle.result()
    assert result["text"] == expected.text == "Hi the😀"
    assert result["tokens"] == expected.tokens
    assert result["logprobs"] == [[own, [list(pair) for pair in top]] for own, top in logprobs]
    assert result["finish_reason"] == "length" and result["completed"]
    assert result["metadata"] == ["x", {"$": "bigint", "is": str(1 << 60)}, 2.5, None, {"a": "水"}]
    assert result["timings"]["created"] == expected.timings.created
    assert result["timings"]["finished"] == expected.timings.finished
    worker.redis.flushall()
    assert await handle.text() == "Hi the😀"


async def test_a_stream_goes_on_where_an_earlier_one_stopped(client: JsClient, worker: FakeWorker) -> None:
    handle = await client.submit(prompt="Hello")
    worker.take()
    for text in ["W😀", "", "r🌊d"]:
        worker.emit(handle.id, text)
    worker.finish(handle.id)
    events = [event async for event in handle.events(seq=2, pos=4)]
    assert [event["type"] for event in events] == ["delta", "done"]
    assert (events[0]["seq"], events[0]["pos"]) == (2, 4)
    assert (events[0]["tokens"], events[0]["text"]) == ([1002], "d")


async def test_a_message_that_was_not_delivered_is_read_from_the_log(
    client: JsClient, worker: FakeWorker
) -> None:
    handle = await client.submit(prompt="Hello")
    worker.take()
    reader = JsReader(handle.events())
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await subscribed(worker, handle)
        worker.emit(handle.id, "a")
        worker.emit(handle.id, "😀", publish=False)
        worker.emit(handle.id, "c", publish=False)
        worker.emit(handle.id, "d")
        await eventually(lambda: reader.text == "a😀cd")
        worker.finish(handle.id)
    assert reader.tokens == [1000, 1001, 1002, 1003]


async def test_silence_makes_it_look_into_the_log(client: JsClient, worker: FakeWorker) -> None:
    """Not one message, not even the end, comes through."""
    handle = await client.submit(prompt="Hello")
    worker.take()
    reader = JsReader(handle.events())
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await subscribed(worker, handle)
        worker.emit(handle.id, "a", publish=False)
        await eventually(lambda: reader.text == "a")
        worker.emit(handle.id, "b", publish=False)
        worker.finish(handle.id, publish=False)
    assert reader.text == "ab"
    assert len(reader.ends) == 1


async def test_text_released_late_is_not_lost_with_its_message(client: JsClient, worker: FakeWorker) -> None:
    """The last characters belong to a token that is there already, so no count of tokens shows the gap."""
    handle = await client.submit(prompt="Hello")
    worker.take()
    reader = JsReader(handle.events())
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await subscribed(worker, handle)
        worker.emit(handle.id, "so ")
        worker.emit(handle.id, "")
        await eventually(lambda: len(reader.tokens) == 2)
        worker.release_held_text(handle.id, "<😀", publish=False)
        worker.finish(handle.id)
    assert reader.text == "so <😀"
    assert reader.tokens == [1000, 1001]


async def test_duplicates_and_stragglers_add_nothing(client: JsClient, worker: FakeWorker) -> None:
    handle = await client.submit(prompt="Hello")
    worker.take()
    reader = JsReader(handle.events())
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await subscribed(worker, handle)
        sent = [worker.emit(handle.id, text) for text in "a😀c"]
        for event in reversed(sent):
            worker.send(handle.id, event, log=False)
        worker.send(handle.id, Delta(1, 1, 2, [1001, 1002, 1003], "😀cd"), log=False)
        worker.emit(handle.id, "d", publish=False)
        worker.finish(handle.id)
    assert reader.text == "a😀cd"
    assert reader.tokens == [1000, 1001, 1002, 1003]


async def test_a_log_rewritten_while_it_is_followed_is_the_same_log(
    client: JsClient, worker: FakeWorker
) -> None:
    """Its entries may even have ids that come before those read already."""
    handle = await client.submit(prompt="Hello")
    worker.take()
    log = worker.keys.events(handle.id)
    worker.redis.xadd(log, {"junk": "of another version"}, id="9999999999999-5")
    worker.emit(handle.id, "a")
    worker.emit(handle.id, "b")
    reader = JsReader(handle.events())
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await eventually(lambda: reader.text == "ab")
        worker.emit(handle.id, "c", publish=False)
        worker.emit(handle.id, "d", publish=False)
        worker.finish(handle.id)
    assert reader.text == "abcd"


async def test_a_log_of_many_pages_is_read_whole(client: JsClient, worker: FakeWorker) -> None:
    handle = await client.submit(prompt="Hello")
    worker.take()
    for number in range(1200):
        worker.emit(handle.id, f"{number} ")
    worker.finish(handle.id, rewrite=False)
    assert await handle.text() == "".join(f"{number} " for number in range(1200))


async def test_a_reader_slower_than_its_mailbox_reads_the_log(
    client: JsClient, worker: FakeWorker, node: JsProcess
) -> None:
    handle = await client.submit(prompt="Hello")
    worker.take()
    worker.emit(handle.id, "0 ")
    stream = aiter(handle.events())
    first = await anext(stream)
    await subscribed(worker, handle)
    before = await node.do("memory")
    big = "x" * 200_000
    for _ in range(200):
        await anyio.to_thread.run_sync(worker.emit, handle.id, big)
    assert await node.do("memory") < before + (20 << 20), "40 MB wait for a reader that does not read"
    worker.finish(handle.id)
    rest = "".join([event["text"] async for event in stream if event["type"] == "delta"])
    assert first["text"] + rest == "0 " + 200 * big


async def test_what_another_version_says_is_passed_over(client: JsClient, worker: FakeWorker) -> None:
    handle = await client.submit(prompt="Hello")
    worker.take()
    reader = JsReader(handle.events())
    log, channel = worker.keys.events(handle.id), worker.keys.channel(handle.id)
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await subscribed(worker, handle)
        for data in (b"\x81\xa4type\xa8progress", b"\xc1 no msgpack", b"", b"\x93\x01\x02\x03"):
            worker.redis.xadd(log, {"e": data})
            worker.redis.publish(channel, data)
        worker.emit(handle.id, "a")
        worker.finish(handle.id, rewrite=False)
    assert reader.text == "a"


@pytest.mark.parametrize("reason", ["cancelled", "expired", "error"])
async def test_text_of_a_request_that_ended_early_fails_with_what_there_is(
    client: JsClient, worker: FakeWorker, reason: str
) -> None:
    handle = await client.submit(prompt="Hello")
    worker.take()
    worker.emit(handle.id, "Hal")
    error = ErrorInfo("model_failed", "out of luck") if reason == "error" else None
    worker.finish(handle.id, reason, error=error)
    with pytest.raises(JsError, match="out of luck" if error else reason) as caught:
        await handle.text()
    assert caught.value.name == "RequestFailed"
    assert caught.value.fields["result"]["text"] == "Hal"
    expected = {"code": "model_failed", "message": "out of luck"} if error else None
    assert (await handle.result()).get("error") == expected


async def test_an_unknown_id_is_said_to_be_unknown(client: JsClient) -> None:
    handle = await client.attach("never-was")
    patient = await client.attach("never-was", wait=300)
    for wanted in (handle.text, handle.status, patient.text):
        with pytest.raises(JsError, match="never-was") as caught:
            await wanted()
        assert caught.value.name == "UnknownRequest"
    assert not await handle.cancel()


async def test_a_damaged_log_of_an_ended_request_is_reported(client: JsClient, worker: FakeWorker) -> None:
    handle = await client.submit(prompt="Hello")
    worker.take()
    for text in "abc":
        worker.emit(handle.id, text)
    worker.finish(handle.id, rewrite=False)
    log = worker.keys.events(handle.id)
    worker.redis.xdel(log, worker.redis.xrange(log)[1][0])
    with pytest.raises(JsError) as caught:
        await handle.text()
    assert caught.value.name == "EventsLost"


async def test_the_end_is_believed_even_when_the_log_is_gone_already(
    client: JsClient, worker: FakeWorker
) -> None:
    handle = await client.submit(prompt="Hello")
    worker.take()
    worker.emit(handle.id, "a")
    stream = aiter(handle.events())
    await anext(stream)
    await subscribed(worker, handle)
    worker.redis.delete(worker.keys.request(handle.id), worker.keys.events(handle.id))
    worker.send(handle.id, Done(1, 1, "stop", Usage()), log=False)
    with anyio.fail_after(LONG):
        assert (await anext(stream))["type"] == "done"


async def test_many_are_followed_over_one_connection(client: JsClient, worker: FakeWorker) -> None:
    handles = [await client.submit(prompt="Hello") for _ in range(50)]
    readers = [JsReader(handle.events()) for handle in handles]
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


async def test_leaving_a_stream_gives_its_subscription_back_and_cancels_nothing(
    client: JsClient, worker: FakeWorker
) -> None:
    handle = await client.submit(prompt="Hello")
    worker.take()
    worker.emit(handle.id, "a")
    stream = handle.events()
    await anext(stream)
    await stream.aclose()
    await subscribed(worker, handle, followers=0)
    with pytest.raises(JsError) as caught:
        await handle.result(timeout=100)
    assert caught.value.name == "TimeoutError"
    await subscribed(worker, handle, followers=0)
    assert not worker.cancelled(handle.id)
    again = JsReader(handle.events())
    async with anyio.create_task_group() as group:
        group.start_soon(again.run)
        await subscribed(worker, handle)
        worker.emit(handle.id, "b")
        worker.finish(handle.id)
    assert again.text == "ab"


async def test_closing_the_client_ends_its_streams(
    node: JsProcess, redis_url: str, worker: FakeWorker
) -> None:
    client = await node.open(redis_url, model="m")
    handle = await client.submit(prompt="Hello")
    worker.take()
    worker.emit(handle.id, "a")
    stream = handle.events()
    await anext(stream)
    await client.close()
    with anyio.fail_after(LONG), pytest.raises(JsError, match="closed"):
        await anext(stream)
    with pytest.raises(JsError, match="closed"):
        await handle.status()
    await subscribed(worker, handle, followers=0)


async def test_another_database_with_equal_names_and_ids_is_not_heard(
    node: JsProcess, client: JsClient, redis_url: str, worker: FakeWorker
) -> None:
    url = redis_url.removesuffix("0") + "1"
    other_worker = FakeWorker(url)
    other = await node.open(url, model="m")
    control = other_worker.redis.pubsub(ignore_subscribe_messages=True)
    handles = [await each.submit(prompt="Hello", id="same") for each in (client, other)]
    readers = [JsReader(handle.events()) for handle in handles]
    async with anyio.create_task_group() as group:
        for reader in readers:
            group.start_soon(reader.run)
        for each in (worker, other_worker):
            each.take()
        worker.emit("same", "one")
        other_worker.emit("same", "one and a half", [1, 2])
        await eventually(lambda: readers[0].text == "one" and readers[1].text == "one and a half")
        control.subscribe(other_worker.keys.control("m"), worker.keys.control("m"))
        control.get_message(timeout=20)
        await handles[1].cancel()
        await eventually(lambda: other_worker.cancelled("same"))
        assert not worker.cancelled("same")
        message = control.get_message(timeout=20) or control.get_message(timeout=20)
        assert message["channel"] == b"headrace:control:{m}@1"
        worker.finish("same")
        other_worker.finish("same", "cancelled")
    assert [reader.ends[0]["finish_reason"] for reader in readers] == ["stop", "cancelled"]
    assert [reader.text for reader in readers] == ["one", "one and a half"]
    control.close()
    await other.close()
    other_worker.close()
