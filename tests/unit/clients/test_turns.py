"""Calls wait for one another as long as Redis answers, and no longer."""

import anyio
import pytest
from redis.asyncio import Redis
from waiting import eventually

from headrace.clients import Unavailable, connection
from headrace.clients.connection import Connection

pytestmark = pytest.mark.anyio
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_CONNECTIONS", 1)


async def test_a_crowd_that_takes_longer_than_the_patience_of_each(one_at_a_time: None) -> None:
    del one_at_a_time
    server = Connection(NOWHERE, timeout=5, patience=5)
    answers: list[int] = []

    async def answer(_: Redis) -> int:
        await anyio.sleep(0.5)  # so that all together take longer, and each far less, than the patience
        return 7

    async def call() -> None:
        answers.append(await server.call(answer))

    async with anyio.create_task_group() as tasks:
        for _ in range(12):
            tasks.start_soon(call)
    assert answers == [7] * 12
    await server.aclose()


async def test_nobody_waits_for_a_server_that_answers_nobody(one_at_a_time: None) -> None:
    del one_at_a_time
    server = Connection(NOWHERE, timeout=1, patience=0.2)
    refused: list[Unavailable] = []

    async def call() -> None:
        try:
            await server.call(lambda _: anyio.sleep_forever())
        except Unavailable as error:
            refused.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)  # has the turn, and hangs
        await anyio.lowlevel.checkpoint()
        for _ in range(20):
            tasks.start_soon(call)
        await eventually(lambda: len(refused) == 20)
        tasks.cancel_scope.cancel()
    await server.aclose()
