"""Work that outlives a gateway: kept in Redis, taken by any gateway for the time of a lease."""

from dataclasses import dataclass
from typing import Any

from ...connection import Connection
from ..redis_keys import GatewayKeys
from ..scripts import ADD_TASK, POSTPONE, TAKE_DUE


@dataclass(frozen=True, slots=True)
class LeasedTask:
    """A task that is this gateway's until its lease is over. ``lease`` tells it from a later taking."""

    id: str
    task: bytes
    lease: int


class Schedule:
    """Tasks of one kind, at most ``limit`` of them, which nobody has touched for at most ``ttl`` seconds.

    A gateway that dies over a task leaves it to others when the lease ends; so a task may be done twice, and
    must not mind. All methods raise ``Unavailable``. Times are in seconds.
    """

    def __init__(
        self, connection: Connection, keys: GatewayKeys, name: str, *, limit: int, ttl: float
    ) -> None:
        self._connection = connection
        self._keys = [keys.due(name), keys.tasks(name)]
        self._limit = limit
        self._ttl = round(ttl * 1000)

    async def add(self, task_id: str, task: bytes, delay: float = 0.0) -> bool:
        """Add a task, due after ``delay``, unless it is there; False if there are too many."""
        arguments = [task_id, task, round(delay * 1000), self._limit, self._ttl]
        return bool(await self._connection.call(lambda server: ADD_TASK.run(server, self._keys, arguments)))

    async def take(self, lease: float) -> LeasedTask | None:
        """The task that has been due longest, for ``lease`` seconds."""
        reply = await self._connection.call(
            lambda server: TAKE_DUE.run(server, self._keys, [round(lease * 1000)])
        )
        return LeasedTask(reply[0].decode(), reply[1], int(reply[2])) if reply else None

    async def postpone(self, leased: LeasedTask, delay: float, task: bytes) -> LeasedTask | None:
        """Write the task anew and let it be due after ``delay``; None if the lease was over.

        What is returned can be used to hold the task for ``delay`` and postpone it again.
        """
        arguments = [leased.id, leased.lease, round(delay * 1000), task, self._ttl]
        lease = await self._connection.call(lambda server: POSTPONE.run(server, self._keys, arguments))
        return LeasedTask(leased.id, task, int(lease)) if lease else None

    async def finish(self, leased: LeasedTask) -> bool:
        """The task is done; False if the lease was over."""
        arguments = [leased.id, leased.lease, "", "", self._ttl]
        return bool(await self._connection.call(lambda server: POSTPONE.run(server, self._keys, arguments)))

    async def drop(self, task_id: str) -> None:
        """Forget a task, whoever has it."""

        async def remove(server: Any) -> None:
            async with server.pipeline() as pipeline:
                pipeline.zrem(self._keys[0], task_id)
                pipeline.hdel(self._keys[1], task_id)
                await pipeline.execute()

        await self._connection.call(remove)
