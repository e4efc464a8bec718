"""What goes wrong, and when: a schedule drawn from a seed, and the hands that carry it out."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import redis.asyncio
from redis_servers import RedisServer
from worker_processes import WorkerProcess, WorkerProcesses

from headrace.clients.protocol import Keys

from .proxy import Proxy
from .recorder import FAILURES, Recorder

Fault = Literal[
    "kill", "pause", "drain", "cut", "slow", "freeze", "orphan", "redis_kill", "power_loss", "flush_all"
]
WEIGHTS: dict[Fault, float] = {
    "kill": 80,
    "pause": 3,
    "drain": 5,
    "cut": 5,
    "slow": 2,
    "freeze": 2,
    "orphan": 2,
    "redis_kill": 3,
    "power_loss": 0,
}
_EXITS = 60.0


def schedule(dice: random.Random, weights: dict[Fault, float], kills: int) -> Iterator[Fault]:
    """Faults until ``kills`` workers have been killed."""
    while kills > 0:
        fault = dice.choices(list(weights), list(weights.values()))[0]
        kills -= fault == "kill"
        yield fault


class Injector:
    """Carries out faults, and keeps ``count`` workers running."""

    def __init__(
        self,
        server: RedisServer,
        direct: redis.asyncio.Redis,
        workers: WorkerProcesses,
        proxies: tuple[Proxy, Proxy],
        recorder: Recorder,
        settings: dict[str, Any],
        dice: random.Random,
        *,
        count: int,
    ) -> None:
        self.faults: Counter[str] = Counter()
        self.poison_kills = 0
        self.problems: list[str] = []
        self.in_flight: set[str] = set()
        """Requests that have not ended, for measuring recoveries; kept by the run."""
        self._server = server
        self._direct = direct
        self._workers = workers
        self._to_workers, self._to_clients = proxies
        self._recorder = recorder
        self._settings = settings
        self._dice = dice
        self._count = count
        self._lease: float = settings["lease"]
        self._told: dict[WorkerProcess, set[int]] = {}
        """The exit statuses that a worker may have after what was done to it."""
        self._file_sizes: list[tuple[Path, int]] = []
        self._looked_at: set[WorkerProcess] = set()

    async def staff(self) -> None:
        """Start workers until there are enough."""
        self._account()
        while len(self._workers.alive) < self._count:
            grace = self._dice.choice([0.0, 0.3, 2.0])
            await self._workers.start({**self._settings, "grace": grace}, step_seconds=0.01, num_blocks=96)

    async def stay_staffed(self) -> None:
        """Replace what dies on its own, until cancelled: poison does that."""
        while True:
            await self.staff()
            self._file_sizes = [(path, path.stat().st_size) for path in self._server.append_only_files()]
            await asyncio.sleep(0.2)

    async def inject(self, fault: Fault) -> None:
        self.faults[fault] += 1
        await getattr(self, f"_{fault}")()

    async def stop_all(self) -> None:
        """Drain every worker."""
        alive = self._workers.alive
        for worker in alive:
            self._tell(worker, 0)
        async with asyncio.timeout(_EXITS):
            await asyncio.gather(*(worker.stop() for worker in alive))
        self._account()

    def _account(self) -> None:
        """Every end of a worker must be one that was meant, or a poison's."""
        for worker in self._workers.started:
            if worker.alive or worker in self._looked_at:
                continue
            self._looked_at.add(worker)
            status = worker.exited.result()
            if status in self._told.get(worker, ()):
                continue
            if status == -signal.SIGKILL:
                self.poison_kills += 1
            else:
                self.problems.append(f"worker {worker.name} ended with status {status}")

    def _tell(self, worker: WorkerProcess, status: int) -> None:
        self._told.setdefault(worker, set()).add(status)

    def _victim(self) -> WorkerProcess | None:
        alive = self._workers.alive
        return self._dice.choice(alive) if alive else None

    async def _kill(self) -> None:
        if victim := self._victim():
            await self._note_requests(victim)
            self._tell(victim, -signal.SIGKILL)
            await victim.kill()
        await asyncio.sleep(self._dice.uniform(0.0, 0.3))
        await self.staff()

    async def _note_requests(self, victim: WorkerProcess) -> None:
        names = list(self.in_flight)
        try:
            async with self._direct.pipeline(transaction=False) as pipeline:
                for name in names:
                    pipeline.hmget(Keys().request(name), "status", "worker", "epoch")
                states: list[Any] = await pipeline.execute()
        except FAILURES:
            return
        for name, (status, worker, epoch) in zip(names, states, strict=True):
            if status == b"running" and worker.decode().partition(".")[0] == victim.name:
                self._recorder.recovery.killed(name, int(epoch))

    async def _pause(self) -> None:
        """Stopped for longer than its lease, then going on as if nothing had been."""
        if victim := self._victim():
            victim.send(signal.SIGSTOP)
            await asyncio.sleep(self._lease * self._dice.uniform(1.2, 2.0))
            victim.send(signal.SIGCONT)

    async def _drain(self) -> None:
        """A rolling restart's part: the next worker starts when this one has left."""
        if victim := self._victim():
            twice = self._dice.random() < 0.3
            await victim.ready.wait()
            self._tell(victim, 0)
            victim.send(signal.SIGTERM)
            if twice:
                self._tell(victim, -signal.SIGTERM)  # it may have drained, and no longer listen
                await asyncio.sleep(0.1)
                victim.send(signal.SIGTERM)

    async def _cut(self) -> None:
        self._dice.choice([self._to_workers, self._to_clients]).cut()

    async def _slow(self) -> None:
        proxy = self._dice.choice([self._to_workers, self._to_clients])
        proxy.delay = self._dice.uniform(0.02, 0.15)
        await asyncio.sleep(1.0)
        proxy.delay = 0.0

    async def _freeze(self) -> None:
        """Nothing passes for longer than time limits and leases; outboxes fill up."""
        proxy = self._dice.choice([self._to_workers, self._to_clients])
        proxy.freeze()
        await asyncio.sleep(self._lease * self._dice.uniform(0.5, 2.0))
        proxy.thaw()

    async def _orphan(self) -> None:
        self._dice.choice([self._to_workers, self._to_clients]).orphan()

    async def _redis_kill(self) -> None:
        await asyncio.to_thread(self._server.kill)
        await asyncio.sleep(self._dice.uniform(0.0, 0.5))
        await asyncio.to_thread(self._server.start)

    async def _power_loss(self) -> None:
        """The file ends where it ended up to a second ago: what had not been synced is gone."""
        sizes = self._file_sizes
        await asyncio.sleep(self._dice.uniform(0.0, 0.7))
        await asyncio.to_thread(self._server.kill)
        for path, size in sizes:
            with path.open("r+b") as file:
                file.truncate(min(size, path.stat().st_size))
        await asyncio.to_thread(self._server.start)

    async def _flush_all(self) -> None:
        await self._direct.flushall()
