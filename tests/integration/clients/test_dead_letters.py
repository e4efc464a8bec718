"""``headrace dead`` on a stream of requests that were given up."""

import json

import msgpack
import pytest
import redis
from typer.testing import CliRunner

from headrace.clients.cli.dead import dead

MODEL = "m"
STREAM = f"headrace:dead:{{{MODEL}}}"
QUEUE = f"headrace:queue:{{{MODEL}}}:normal:0"


def run(url: str, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(dead, [*arguments, "--redis", url, "--model", MODEL])
    return result.exit_code, result.output


@pytest.fixture
def letters(redis_client: redis.Redis) -> list[str]:
    """A poisonous request that has ended, and junk."""
    body = msgpack.packb({"v": 1, "id": "poison", "model": MODEL, "prompt": "secret", "max_tokens": 3})
    redis_client.hset("headrace:request:{poison}", mapping={"status": "finished", "epoch": 6, "attempts": 6})
    redis_client.expire("headrace:request:{poison}", 100)
    redis_client.xadd("headrace:events:{poison}", {"e": b"old"})
    redis_client.expire("headrace:events:{poison}", 100)
    return [
        redis_client.xadd(STREAM, {"r": r, "error": error, "attempts": 6}).decode()
        for r, error in ((body, "too_many_attempts: given up"), (b"\xc1", "invalid_request: not msgpack"))
    ]


def test_list_shows_what_was_given_up_newest_first_and_no_prompt(redis_url: str, letters: list[str]) -> None:
    status, output = run(redis_url, "list", "--json")
    records = [json.loads(line) for line in output.splitlines()]
    assert status == 0
    assert [record["id"] for record in records] == letters[::-1]
    assert [record["request_id"] for record in records] == [None, "poison"]
    assert records[1]["error"] == "too_many_attempts: given up"
    assert "secret" not in output
    assert "poison" in run(redis_url, "list")[1]
    assert len(run(redis_url, "list", "--json", "--count", "1")[1].splitlines()) == 1


def test_show_by_letter_or_request_id(redis_url: str, letters: list[str]) -> None:
    by_letter = json.loads(run(redis_url, "show", letters[0])[1])
    assert by_letter == json.loads(run(redis_url, "show", "poison")[1])
    assert by_letter["request"]["prompt"] == "secret"
    junk = json.loads(run(redis_url, "show", letters[1])[1])
    assert (junk["bytes"], junk["request_id"]) == ("c1", None)


def test_retry_enqueues_the_request_afresh_under_its_id(
    redis_url: str, redis_client: redis.Redis, letters: list[str]
) -> None:
    status, output = run(redis_url, "retry", letters[0])
    assert (status, output) == (0, "Enqueued poison again.\n")
    state = redis_client.hgetall("headrace:request:{poison}")
    assert state[b"status"] == b"queued"
    assert b"epoch" not in state or state[b"epoch"] == b"0"
    assert not redis_client.exists("headrace:events:{poison}")
    [(_, fields)] = redis_client.xrange(QUEUE)
    assert msgpack.unpackb(fields[b"r"])["prompt"] == "secret"
    assert redis_client.xlen(STREAM) == 1
    assert run(redis_url, "retry", letters[0])[0] == 1


def test_retry_leaves_a_request_alone_that_is_under_way(
    redis_url: str, redis_client: redis.Redis, letters: list[str]
) -> None:
    redis_client.hset("headrace:request:{poison}", "status", "running")
    status, output = run(redis_url, "retry", "poison")
    assert status == 1
    assert "queued or running" in output
    assert redis_client.xlen(QUEUE) == 0
    assert redis_client.xlen(STREAM) == 2
    assert len(letters) == 2


def test_retry_of_junk_says_why_not_and_drop_removes_it(
    redis_url: str, redis_client: redis.Redis, letters: list[str]
) -> None:
    status, output = run(redis_url, "retry", letters[1])
    assert status == 1
    assert "not msgpack" in output
    assert run(redis_url, "drop", letters[1]) == (0, f"Dropped {letters[1]}.\n")
    assert [entry.decode() for entry, _ in redis_client.xrange(STREAM)] == letters[:1]
    status, output = run(redis_url, "drop", "nonsense")
    assert status == 1
    assert "no dead letter nonsense" in output
