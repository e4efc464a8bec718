"""Commands to a Redis Cluster, sent to the nodes that own their slots, many in one round trip to each.

One node that is away fails the commands of its own slots and no others. A cluster is asked for its layout
when first used and when a node did not answer, and is believed when it redirects a command.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import anyio
import redis.asyncio
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, RedisError

from .redis_url import Location

Address = tuple[str, int]
Call = tuple[bytes | str | float, ...]

_REDIRECTIONS: Final = 5
"""In one execution of a command; more mean that the cluster is being rebuilt."""
_GONE: Final = 2
"""Clients of nodes that have left, kept for what is under way with them."""


class Cluster:
    """One client per node, as long as it is one. ``options`` are those of ``redis.asyncio.Redis``."""

    def __init__(self, location: Location, options: dict[str, Any]) -> None:
        self._location = location
        self._options = options
        self._clients: dict[Address, redis.asyncio.Redis] = {}
        self._gone: deque[redis.asyncio.Redis] = deque()
        self._owners: list[tuple[int, int, Address]] = []
        self._moved: dict[int, Address] = {}
        self._stale = True
        self._asking = anyio.Lock()

    def doubt(self) -> None:
        """Ask for the layout before the next command: what was known has turned out wrong."""
        self._stale = True

    async def owner(self, key: str) -> redis.asyncio.Redis:
        """A client of the node that has ``key``. Raises ``redis.RedisError`` where no node knows."""
        await self._know()
        return self._client(self._address(key_slot(key.encode())))

    async def masters(self) -> list[redis.asyncio.Redis]:
        """A client for each node that owns slots. Raises ``redis.RedisError`` where no node knows."""
        await self._know()
        return [self._client(address) for address in sorted({owner for _, _, owner in self._owners})]

    async def execute(self, calls: Sequence[Call]) -> list[Any]:
        """The replies; in the place of one that failed, its error. Each call's keys are in one slot.

        Raises:
            redis.RedisError: no node knows the layout.
        """
        await self._know()
        replies: list[Any] = [None] * len(calls)
        waiting = dict.fromkeys(range(len(calls)), False)  # whether redirected by ASK
        addresses = {number: self._address(_slot(calls[number])) for number in waiting}
        for _ in range(_REDIRECTIONS):
            groups: dict[Address, list[int]] = {}
            for number in waiting:
                groups.setdefault(addresses[number], []).append(number)
            async with anyio.create_task_group() as tasks:
                for address, numbers in groups.items():
                    asked = [number for number in numbers if waiting[number]]
                    plain = [number for number in numbers if not waiting[number]]
                    tasks.start_soon(self._send, address, calls, plain, asked, replies)
            redirected: dict[int, bool] = {}
            for number in waiting:
                reply = replies[number]
                if isinstance(reply, AskError):
                    address = (reply.host or addresses[number][0], reply.port)
                    if isinstance(reply, MovedError):
                        self._moved[reply.slot_id] = address
                        self._stale = True
                    addresses[number] = address
                    redirected[number] = not isinstance(reply, MovedError)
            waiting = redirected
            if not waiting:
                break
        return replies

    async def aclose(self) -> None:
        for client in (*self._clients.values(), *self._gone):
            await client.aclose()

    async def _send(
        self,
        address: Address,
        calls: Sequence[Call],
        plain: list[int],
        asked: list[int],
        replies: list[Any],
    ) -> None:
        try:
            async with self._client(address).pipeline(transaction=False) as pipeline:
                for number in plain:
                    pipeline.execute_command(*calls[number])
                for number in asked:
                    pipeline.execute_command("ASKING")
                    pipeline.execute_command(*calls[number])
                answers: list[Any] = await pipeline.execute(raise_on_error=False)
        except (RedisError, OSError, EOFError) as error:
            self._stale = True
            answers = [error] * (len(plain) + 2 * len(asked))
        for number, answer in zip(plain, answers, strict=False):
            replies[number] = answer
        for number, answer in zip(asked, answers[len(plain) + 1 :: 2], strict=True):
            replies[number] = answer

    async def _know(self) -> None:
        async with self._asking:
            if not self._stale:
                return
            last: Exception = ClusterDownError("no node of the cluster answers")
            for address in dict.fromkeys([*self._clients, *self._location.nodes]):
                try:
                    layout: Any = await self._client(address).execute_command("CLUSTER SLOTS")
                except (RedisError, OSError, EOFError) as error:
                    last = error
                    continue
                await self._learn(address, layout)
                return
            raise last

    async def _learn(self, asked: Address, layout: list[Any]) -> None:
        # A node that does not know its own address leaves it empty: it is the one that was asked.
        self._owners = [
            (first, last, (master[0].decode() or asked[0], master[1])) for first, last, master, *_ in layout
        ]
        self._moved.clear()
        self._stale = False
        nodes = {(node[0].decode() or asked[0], node[1]) for _, _, *shard in layout for node in shard}
        for address in [address for address in self._clients if address not in nodes]:
            self._gone.append(self._clients.pop(address))
        while len(self._gone) > _GONE:
            await self._gone.popleft().aclose()

    def _address(self, slot: int) -> Address:
        if moved := self._moved.get(slot):
            return moved
        for first, last, address in self._owners:
            if first <= slot <= last:
                return address
        self._stale = True
        raise ClusterDownError(f"no node owns slot {slot}")

    def _client(self, address: Address) -> redis.asyncio.Redis:
        client = self._clients.get(address)
        if client is None:
            url = self._location.node_url(*address)
            client = self._clients[address] = redis.asyncio.Redis.from_url(url, **self._options)
        return client


def _slot(call: Call) -> int:
    key = call[3] if call[0] in ("EVAL", "EVALSHA") else call[1]
    return key_slot(key if isinstance(key, bytes) else str(key).encode())
