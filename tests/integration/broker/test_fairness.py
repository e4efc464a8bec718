"""Who is served next: priorities, ageing, and lanes by tokens served."""

import random

import pytest
import redis
from counting_worker import KEYS, MODEL

from headrace.clients.protocol import GROUP
from headrace.worker.ageing import Ageing
from headrace.worker.broker.scripts import TAKE

AGEING_MS = 30_000


def add(client: redis.Redis, priority: str, lane: int, name: str, *, age_ms: int = 0, size: int = 40) -> None:
    seconds, micros = client.time()
    now = seconds * 1000 + micros // 1000
    body = name.encode().ljust(size)
    client.xadd(f"headrace:queue:{{{MODEL}}}:{priority}:{lane}", {"r": body}, id=f"{now - age_ms}-*")


def take(client: redis.Redis, *room: int, consumer: str = "c") -> list[str]:
    """The names taken, in order."""
    keys = [*KEYS.queues(MODEL), KEYS.service(MODEL)]
    arguments = [GROUP, consumer, 86_400_000, *room, AGEING_MS, *Ageing(AGEING_MS).delays]
    entries, _ = client.eval(TAKE.text, len(keys), *keys, *arguments)
    return [body.decode().strip() for _, _, body, _ in entries]


def serve(client: redis.Redis, lane: int, tokens: int) -> None:
    client.hincrby(KEYS.service(MODEL), str(lane), tokens)


def test_priorities_go_in_order_whatever_came_first(redis_client: redis.Redis) -> None:
    for name, priority in (("l", "low"), ("n", "normal"), ("h", "high")):
        for number in (1, 2):
            add(redis_client, priority, number, f"{name}{number}")
    assert [name[0] for name in take(redis_client, 9, 9, 9)] == list("hhnnll")


def test_room_is_counted_by_priority(redis_client: redis.Redis) -> None:
    for priority in ("low", "normal", "high"):
        for number in range(4):
            add(redis_client, priority, number, f"{priority}{number}")
    assert [name[:-1] for name in take(redis_client, 3, 2, 1)] == ["high"] * 3
    assert [name[:-1] for name in take(redis_client, 3, 2, 0)] == ["high", "normal"]
    assert [name[:-1] for name in take(redis_client, 1, 0, 0)] == []
    assert [name[:-1] for name in take(redis_client, 5, 5, 5)] == ["normal"] * 3 + ["low"] * 2


def test_one_request_does_not_wait_for_anothers_thousand(redis_client: redis.Redis) -> None:
    for number in range(1000):
        add(redis_client, "normal", 3, f"many{number}")
    assert len(take(redis_client, 16, 16, 16)) == 16
    add(redis_client, "normal", 9, "one")
    assert "one" in take(redis_client, 2, 2, 2)


def test_lanes_share_service_by_tokens_not_by_requests(redis_client: redis.Redis) -> None:
    """Lane 1 asks for outputs nine times as long as lane 2's: it gets as many tokens, so fewer requests."""
    cost = {1: 90, 2: 10}
    waiting = dict.fromkeys(cost, 0)
    served = dict.fromkeys(cost, 0)
    for _ in range(400):
        for lane in cost:
            if waiting[lane] < 3:
                add(redis_client, "normal", lane, f"{lane}", size=4)
                waiting[lane] += 1
        (name,) = take(redis_client, 1, 1, 1)
        lane = int(name)
        waiting[lane] -= 1
        served[lane] += cost[lane] + 2  # the input's charge
        serve(redis_client, lane, cost[lane])
    assert abs(served[1] - served[2]) <= max(cost.values()) + 2
    assert served[2] / (cost[2] + 2) > 7 * served[1] / (cost[1] + 2)


def test_a_lane_that_was_idle_does_not_collect_a_claim_to_service(redis_client: redis.Redis) -> None:
    for number in range(200):
        add(redis_client, "normal", 1, f"busy{number}")
    for _ in range(50):
        take(redis_client, 1, 1, 1)
        serve(redis_client, 1, 100)
    for number in range(50):
        add(redis_client, "normal", 2, f"new{number}")
    order = []
    for _ in range(20):
        (name,) = take(redis_client, 1, 1, 1)
        order.append(name[:3])
        serve(redis_client, 1 if name.startswith("busy") else 2, 100)
    # It starts level: they alternate from the beginning, instead of the newcomer catching up first.
    assert 8 <= order.count("new") <= 12


def test_waiting_raises_the_class_so_that_low_is_never_starved(redis_client: redis.Redis) -> None:
    add(redis_client, "low", 0, "fresh low")
    add(redis_client, "low", 1, "old low", age_ms=AGEING_MS + 1000)
    add(redis_client, "low", 2, "very old low", age_ms=2 * AGEING_MS + 1000)
    add(redis_client, "normal", 3, "fresh normal")
    add(redis_client, "high", 4, "fresh high")
    first, second, *rest = take(redis_client, 9, 9, 9)
    assert {first, second} == {"very old low", "fresh high"}
    assert set(rest[:2]) == {"old low", "fresh normal"}
    assert rest[2:] == ["fresh low"]


def test_a_flood_of_one_lanes_high_does_not_starve_its_own_old_low(redis_client: redis.Redis) -> None:
    add(redis_client, "low", 0, "low", age_ms=2 * AGEING_MS + 1000)
    for number in range(100):
        add(redis_client, "high", 0, f"high{number}")
    assert take(redis_client, 1, 1, 1) == ["low"]


def test_within_a_lane_it_is_first_come_first_served(redis_client: redis.Redis) -> None:
    names = [f"r{number}" for number in range(50)]
    for name in names:
        add(redis_client, "normal", 5, name)
    taken: list[str] = []
    while len(taken) < len(names):
        taken += take(redis_client, 7, 7, 7, consumer=random.choice("ab"))
    assert taken == names


@pytest.mark.parametrize("entry_id", ["1-1", "18446744073709551615-5", "9007199254740993-7"])
def test_entries_with_ids_of_any_size_are_taken_once(redis_client: redis.Redis, entry_id: str) -> None:
    queue = KEYS.queue(MODEL, "normal", 0)
    redis_client.xadd(queue, {"r": b"odd"}, id=entry_id)
    ms, seq = entry_id.split("-")
    redis_client.xadd(queue, {"r": b"next"}, id=f"{ms}-{int(seq) + 1}")
    assert take(redis_client, 1, 1, 1) == ["odd"]
    assert take(redis_client, 9, 9, 9) == ["next"]
    assert take(redis_client, 9, 9, 9) == []


def test_an_entry_deleted_while_it_waits_is_passed_over(redis_client: redis.Redis) -> None:
    queue = KEYS.queue(MODEL, "normal", 0)
    add(redis_client, "normal", 0, "first")
    add(redis_client, "low", 0, "blocked")
    add(redis_client, "normal", 0, "second")
    add(redis_client, "normal", 0, "third")
    assert take(redis_client, 1, 1, 0) == ["first"]
    second = redis_client.xrange(queue)[1][0]
    redis_client.xdel(queue, second)
    assert take(redis_client, 5, 5, 5) == ["third", "blocked"]


def test_service_counts_are_forgotten_in_the_end(redis_client: redis.Redis) -> None:
    add(redis_client, "normal", 4, "x", size=80)
    take(redis_client, 1, 1, 1)
    assert redis_client.hget(KEYS.service(MODEL), "4") == b"21"
    assert 0 < redis_client.ttl(KEYS.service(MODEL)) <= 86_400
