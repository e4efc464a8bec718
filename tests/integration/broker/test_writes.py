"""What one claim may write, and what a repetition or a former claim may not."""

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
import redis
from counting_worker import KEYS, log_of, state_of

from headrace.clients.protocol import Delta, Done, Usage, encode_event
from headrace.worker.broker.scripts import ACK, EMIT, FINISH, RELEASE

NAMES = [KEYS.request("a"), KEYS.events("a"), KEYS.channel("a")]
TTL = 60_000
MINE = {"status": "running", "epoch": 2, "worker": "w.1"}


@pytest.fixture(autouse=True)
def running_in_epoch_2(redis_client: redis.Redis) -> None:
    redis_client.hset(KEYS.request("a"), mapping={**MINE, "attempts": 2})
    redis_client.pexpire(KEYS.request("a"), TTL)


@pytest.fixture
def published(redis_client: redis.Redis) -> Any:
    with redis_client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe(KEYS.channel("a"))
        channel.get_message(timeout=20)

        def messages() -> int:
            redis_client.publish(KEYS.channel("a"), b"mark")
            count = 0
            while True:
                message = channel.get_message(timeout=20)
                if message is not None and message["data"] == b"mark":
                    return count
                count += message is not None

        yield messages


def emit(
    client: redis.Redis, epoch: int, seq: int, count: int, *, ask: bool = False, worker: str = "w.1"
) -> list[Any]:
    event = encode_event(Delta(seq, seq, epoch, list(range(seq, seq + count)), "x" * count))
    told = (epoch, seq, 0, b"") if ask else (epoch, seq, count, event)
    reply: Any = client.eval(
        EMIT.text, 3, *NAMES, worker, TTL, "PUBLISH", msgpack.packb([told], use_bin_type=False)
    )
    (answer,) = msgpack.unpackb(reply, raw=True)
    return answer


def finish(client: redis.Redis, epoch: int, total: int, dead: str = "", *, worker: str = "w.1") -> list[Any]:
    whole = encode_event(Delta(0, 0, epoch, list(range(total)), "x" * total))
    done = encode_event(Done(total, epoch, "stop", Usage()))
    arguments = [epoch, worker, total, whole, b"", done, "stop", TTL, "PUBLISH", dead]
    reply = client.eval(FINISH.text, 3, *NAMES, *arguments)
    assert isinstance(reply, list)
    return reply


def test_an_emit_repeated_is_logged_and_published_once(
    redis_client: redis.Redis, published: Callable[[], int]
) -> None:
    assert emit(redis_client, 2, 0, 3) == [b"ok", 3, b""]
    assert emit(redis_client, 2, 0, 3) == [b"ok", 3, b""]
    assert emit(redis_client, 2, 3, 1) == [b"ok", 4, b""]
    assert emit(redis_client, 2, 0, 3) == [b"ok", 4, b""]
    assert [event.seq for event in log_of(redis_client, "a")] == [0, 3]
    assert published() == 2


def test_an_emit_that_overlaps_or_leaves_a_gap_is_told_where_the_log_ends(
    redis_client: redis.Redis, published: Callable[[], int]
) -> None:
    emit(redis_client, 2, 0, 3)
    assert emit(redis_client, 2, 0, 5) == [b"at", 3, b""]
    assert emit(redis_client, 2, 4, 1) == [b"at", 3, b""]
    assert emit(redis_client, 2, 4, 0, ask=True) == [b"at", 3, b""]
    assert emit(redis_client, 2, 3, 0, ask=True) == [b"ok", 3, b""]
    assert len(log_of(redis_client, "a")) == 1
    assert published() == 1


@pytest.mark.parametrize("epoch", [1, 3])
def test_another_epoch_writes_nothing(
    redis_client: redis.Redis, published: Callable[[], int], epoch: int
) -> None:
    emit(redis_client, 2, 0, 3)
    before = state_of(redis_client, "a")
    assert emit(redis_client, epoch, 3, 1) == [b"lost", b"running", b"2"]
    assert emit(redis_client, epoch, 3, 1, ask=True) == [b"lost", b"running", b"2"]
    assert finish(redis_client, epoch, 4) == [b"lost", b"running", b"2"]
    assert redis_client.eval(RELEASE.text, 2, *NAMES[:2], epoch, "w.1", TTL) == 0
    assert state_of(redis_client, "a") == before
    assert len(log_of(redis_client, "a")) == 1
    assert published() == 1


def test_the_same_epoch_of_another_worker_writes_nothing(
    redis_client: redis.Redis, published: Callable[[], int]
) -> None:
    """A server that lost its last second hands out an epoch again, while the first to have it still runs."""
    emit(redis_client, 2, 0, 3)
    before = state_of(redis_client, "a")
    assert emit(redis_client, 2, 3, 1, worker="w.2") == [b"lost", b"running", b"2"]
    assert emit(redis_client, 2, 3, 1, ask=True, worker="w.2") == [b"lost", b"running", b"2"]
    assert finish(redis_client, 2, 4, worker="w.2") == [b"lost", b"running", b"2"]
    assert redis_client.eval(RELEASE.text, 2, *NAMES[:2], 2, "w.2", TTL) == 0
    assert state_of(redis_client, "a") == before
    assert published() == 1
    finish(redis_client, 2, 4)
    assert finish(redis_client, 2, 5, worker="w.2") == [b"lost", b"finished", b"2"]


def test_an_end_repeated_is_one_end_and_nothing_comes_after_it(
    redis_client: redis.Redis, published: Callable[[], int]
) -> None:
    emit(redis_client, 2, 0, 3)
    for _ in range(2):
        assert finish(redis_client, 2, 4) == [b"ok"]
    assert [type(event).__name__ for event in log_of(redis_client, "a")] == ["Delta", "Done"]
    assert published() == 2
    assert emit(redis_client, 2, 4, 1) == [b"lost", b"finished", b"2"]
    assert finish(redis_client, 3, 9) == [b"lost", b"finished", b"2"]
    assert redis_client.eval(RELEASE.text, 2, *NAMES[:2], 2, "w.1", TTL) == 0
    assert state_of(redis_client, "a")["status"] == "finished"


def test_readers_that_wait_after_an_id_see_the_rewritten_log(redis_client: redis.Redis) -> None:
    emit(redis_client, 2, 0, 3)
    last = redis_client.xrange(KEYS.events("a"))[-1][0]
    finish(redis_client, 2, 4)
    ((_, later),) = redis_client.xread({KEYS.events("a"): last})
    assert len(later) == 2


def test_without_its_state_a_request_cannot_be_written_to(redis_client: redis.Redis) -> None:
    redis_client.delete(KEYS.request("a"))
    assert emit(redis_client, 2, 0, 1) == [b"lost", b"", b""]
    assert finish(redis_client, 2, 1) == [b"lost", b"", b""]
    assert redis_client.dbsize() == 0


def test_the_state_of_a_long_request_does_not_expire_under_it(redis_client: redis.Redis) -> None:
    redis_client.pexpire(KEYS.request("a"), 10_000)
    emit(redis_client, 2, 0, 1)
    assert redis_client.pttl(KEYS.request("a")) > TTL / 2
    redis_client.pexpire(KEYS.events("a"), 10_000)
    emit(redis_client, 2, 1, 0, ask=True)
    assert redis_client.pttl(KEYS.events("a")) > TTL / 2


def test_a_settlement_repeated_leaves_one_dead_letter(redis_client: redis.Redis) -> None:
    queue, dead = KEYS.queue("m", "normal", 0), KEYS.dead("m")
    redis_client.xgroup_create(queue, "workers", "0", mkstream=True)
    entry = redis_client.xadd(queue, {"r": b"body"})
    redis_client.xreadgroup("workers", "c", {queue: ">"})
    arguments = ["workers", entry, "why", 3, b"body", 1000]
    assert [redis_client.eval(ACK.text, 2, queue, dead, *arguments) for _ in range(2)] == [1, 0]
    assert (redis_client.xlen(queue), redis_client.xpending(queue, "workers")["pending"]) == (0, 0)
    ((_, letter),) = redis_client.xrange(dead)
    assert letter == {b"r": b"body", b"error": b"why", b"attempts": b"3"}
