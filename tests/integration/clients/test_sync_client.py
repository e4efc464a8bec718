"""The blocking client: the same promise, without an event loop."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from fake_worker import FakeWorker, echo, serve
from waiting import eventually_sync

from headrace.clients import Client, Delta, Done, QueueFull, RequestFailed, UnknownRequest, make_request


@pytest.fixture
def serving(worker: FakeWorker) -> Iterator[FakeWorker]:
    stop = serve(worker, echo)
    yield worker
    stop()


@pytest.mark.usefixtures("serving")
def test_a_request_is_streamed(sync_client: Client) -> None:
    events = list(sync_client.submit("one two three"))
    assert "".join(event.text for event in events if isinstance(event, Delta)) == "one two three "
    assert isinstance(events[-1], Done)


@pytest.mark.usefixtures("serving")
def test_result_and_text_and_status_and_attach(sync_client: Client) -> None:
    handle = sync_client.submit("one two three", max_tokens=2, metadata=1)
    assert handle.text(timeout=30) == "one two "
    result = handle.result()
    assert (result.finish_reason, result.metadata, len(result.tokens)) == ("length", 1, 2)
    again = sync_client.attach(handle.id)
    assert again.status().status == "finished"
    assert again.text() == "one two "
    assert [type(event) for event in again.events(seq=2, pos=8)] == [Done]


@pytest.mark.usefixtures("serving")
def test_several_are_submitted_all_or_none(redis_url: str) -> None:
    requests = [make_request(id=f"r{number}", model="m", prompt=f"number {number}") for number in range(3)]
    with Client(redis_url, model="m", queue_limit=2) as client:
        with pytest.raises(QueueFull, match="3 more do not fit"):
            client.submit_all(requests)
        with pytest.raises(UnknownRequest):
            client.attach("r0").status()
    with Client(redis_url, queue_limit=3) as client:
        handles = client.submit_all(requests)
        again = client.submit_all(requests)
        assert [handle.id for handle in handles] == [handle.id for handle in again] == ["r0", "r1", "r2"]
        assert [handle.text(timeout=30) for handle in handles] == ["number 0 ", "number 1 ", "number 2 "]


def test_errors_are_those_of_the_asynchronous_client(redis_url: str, worker: FakeWorker) -> None:
    with Client(redis_url, model="m", queue_limit=1) as client:
        handle = client.submit("Hello")
        with pytest.raises(QueueFull):
            client.submit("Hello")
        with pytest.raises(UnknownRequest):
            client.attach("unknown").text()
        with pytest.raises(ValueError, match="id: must match"):
            client.attach("}")
        assert handle.cancel()
        worker.take()
        worker.finish(handle.id, "cancelled")
        with pytest.raises(RequestFailed):
            handle.text()


def test_waiting_can_be_bounded(sync_client: Client, worker: FakeWorker) -> None:
    handle = sync_client.submit("Hello")
    with pytest.raises(TimeoutError):
        handle.text(timeout=0.05)
    worker.take()
    worker.finish(handle.id)
    assert handle.text(timeout=30) == ""


@pytest.mark.usefixtures("serving")
def test_threads_share_a_client(sync_client: Client) -> None:
    texts: dict[int, str] = {}

    def ask(number: int) -> None:
        texts[number] = sync_client.submit(f"number {number}").text(timeout=30)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {number: f"number {number} " for number in range(8)}


@pytest.mark.usefixtures("serving")
def test_leaving_a_stream_early_leaves_no_subscription(sync_client: Client, worker: FakeWorker) -> None:
    handle = sync_client.submit(" ".join(["word"] * 50))
    for _ in handle:
        break
    channel = worker.keys.channel(handle.id)
    eventually_sync(lambda: worker.redis.pubsub_numsub(channel)[0][1] == 0)
    assert len(handle.result(timeout=30).tokens) == 50


@pytest.mark.usefixtures("serving")
def test_a_closed_client_has_left_the_server_and_may_be_used_again(
    redis_url: str, worker: FakeWorker
) -> None:
    client = Client(redis_url, model="m")
    assert client.submit("Hello").text(timeout=30) == "Hello "
    threads = threading.active_count()
    client.close()
    assert threading.active_count() == threads - 1
    eventually_sync(lambda: len(worker.redis.client_list(_type="pubsub")) == 0)
    assert client.submit("Hello").text(timeout=30) == "Hello "
    client.close()


@pytest.mark.usefixtures("serving")
def test_a_client_works_in_a_forked_child(redis_url: str) -> None:
    program = f"""
import os, sys
from headrace.clients import Client
client = Client({redis_url!r}, model="m")
handle = client.submit("one two")
assert handle.text(timeout=30) == "one two "
stream = iter(client.submit("a b c"))
next(stream)
child = os.fork()
if child == 0:
    assert client.submit("three").text(timeout=30) == "three "
    assert client.attach(handle.id).text(timeout=30) == "one two "
    del stream
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(list(stream)) > 0
"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], timeout=60, capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_a_client_that_was_never_closed_holds_up_no_exit(redis_url: str, worker: FakeWorker) -> None:
    program = f"""
from headrace.clients import Client
handle = Client({redis_url!r}, model="m").submit("Hello")
stream = iter(handle)
try:
    handle.text(timeout=0.1)
except TimeoutError:
    pass
"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], timeout=60, capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert worker.take().prompt == "Hello"


def test_an_interrupt_ends_the_waiting_at_once(redis_url: str, worker: FakeWorker) -> None:
    program = f"""
from headrace.clients import Client
with Client({redis_url!r}, model="m") as client:
    try:
        for event in client.submit("Hello", id="r"):
            print(event.text, flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    worker.take()
    worker.emit("r", "Hi")
    assert process.stdout.readline() == "Hi\n"
    os.kill(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60) == ("interrupted\n", None)
    assert process.returncode == 0
    worker.finish("r")
