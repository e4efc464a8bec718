"""Schedule of durable tasks in Redis, leased to one gateway at a time."""

from dataclasses import dataclass
from typing import Any

from ...connection import Connection
from ..redis_keys import GatewayKeys
from ..scripts import ADD_TASK, POSTPONE, TAKE_DUE


@dataclass(frozen=True, slots=True)
class LeasedTask:
    """A task leased to this gateway. ``lease``, the lease's expiry time in ms, identifies it."""

    id: str
    task: bytes
    lease: int


class Schedule:
    """Tasks of one kind, at most ``limit``; all expire ``ttl`` seconds after the last change.

    If a gateway dies, another takes its tasks when their leases expire: a task can run twice and must be
    idempotent. All methods raise ``Unavailable``. Times are in seconds.
    """

    def __init__(
        self, connection: Connection, keys: GatewayKeys, name: str, *, limit: int, ttl: float
    ) -> None:
        self._connection = connection
        self._keys = [keys.due(name), keys.tasks(name)]
        self._limit = limit
        self._ttl = round(ttl * 1000)

    async def add(self, task_id: str, task: bytes, delay: float = 0.0) -> bool:
        """Add a task, due after ``delay``, unless it exists; False at the limit."""
        arguments = [task_id, task, round(delay * 1000), self._limit, self._ttl]
        return bool(await self._connection.call(lambda server: ADD_TASK.run(server, self._keys, arguments)))

    async def take(self, lease: float) -> LeasedTask | None:
        """Lease the task that has been due longest, for ``lease`` seconds."""
        reply = await self._connection.call(
            lambda server: TAKE_DUE.run(server, self._keys, [round(lease * 1000)])
        )
        return LeasedTask(reply[0].decode(), reply[1], int(reply[2])) if reply else None

    async def postpone(self, leased: LeasedTask, delay: float, task: bytes) -> LeasedTask | None:
        """Replace the task's payload and make it due after ``delay``; None if the lease had expired.

        The result holds the lease for ``delay``: postponing again renews it.
        """
        arguments = [leased.id, leased.lease, round(delay * 1000), task, self._ttl]
        lease = await self._connection.call(lambda server: POSTPONE.run(server, self._keys, arguments))
        return LeasedTask(leased.id, task, int(lease)) if lease else None

    async def finish(self, leased: LeasedTask) -> bool:
        """Remove a task that is done; False if the lease had expired."""
        arguments = [leased.id, leased.lease, "", "", self._ttl]
        return bool(await self._connection.call(lambda server: POSTPONE.run(server, self._keys, arguments)))

    async def drop(self, task_id: str) -> None:
        """Remove a task, leased or not."""

        async def remove(server: Any) -> None:
            async with server.pipeline() as pipeline:
                pipeline.zrem(self._keys[0], task_id)
                pipeline.hdel(self._keys[1], task_id)
                await pipeline.execute()

        await self._connection.call(remove)
