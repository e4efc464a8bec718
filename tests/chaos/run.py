"""One run: servers, workers, subscribers and faults; then everything is held against the promise."""

import asyncio
import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis_servers import Kind, RedisServer, immortal_keys, running
from simulated_model import MODEL
from waiting import eventually
from worker_processes import worker_processes

from headrace.clients import AsyncClient
from headrace.clients.protocol import Keys

from .faults import WEIGHTS, Fault, Injector, schedule
from .log_checks import check_logs
from .proxy import Proxy, proxy_to
from .recorder import Recorder
from .subscribers import follow, submit
from .views import View, Violation
from .workload import Job, make_job

_STUCK = 120.0
"""Seconds without any end of a request after which the run has failed."""


@dataclass(kw_only=True)
class Plan:
    """What to do in one run. It ends when all ``kills`` are done and ``minutes`` are over."""

    seed: int
    kills: int
    minutes: float = 0.0
    server: Kind = "valkey"
    fsync: Literal["always", "everysec"] = "always"
    workers: int = 3
    concurrency: int = 16
    lease: float = 1.0
    poison: float = 0.0
    max_attempts: int = 40
    weights: dict[Fault, float] = field(default_factory=lambda: dict(WEIGHTS))


@dataclass
class Report:
    """What a run did, and what it found."""

    plan: Plan
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter[str])
    poison_kills: int = 0
    ended: Counter[str] = field(default_factory=Counter[str])
    subscribers: int = 0
    tokens: int = 0
    messages: int = 0
    repetitions: int = 0
    """On channels; subscribers drop them."""
    resubmitted: int = 0
    recoveries: int = 0
    recovery_median: float = 0.0
    recovery_worst: float = 0.0
    violations: list[str] = field(default_factory=list[str])

    @property
    def kills(self) -> int:
        return self.faults["kill"] + self.poison_kills

    @property
    def requests(self) -> int:
        return self.ended.total()


async def run(plan: Plan, folder: Path) -> Report:
    """Carry out ``plan``; logs of servers and workers are left in ``folder``."""
    report = Report(plan)
    server = RedisServer(plan.server, folder / "redis", durable=True, fsync=plan.fsync)
    async with AsyncExitStack() as stack:
        stack.enter_context(running(server))
        direct = redis.asyncio.Redis.from_url(
            server.url, socket_timeout=5, protocol=2, retry=Retry(NoBackoff(), 0)
        )
        stack.push_async_callback(direct.aclose)
        to_workers = await stack.enter_async_context(proxy_to(server.port))
        to_clients = await stack.enter_async_context(proxy_to(server.port))
        workers = await stack.enter_async_context(worker_processes("simulated", folder))
        client = await stack.enter_async_context(
            AsyncClient(to_clients.url, model=MODEL, timeout=2.0, patience=60.0)
        )
        settings: dict[str, Any] = {
            "redis": to_workers.url,
            "lease": plan.lease,
            "redis_timeout": 2 * plan.lease,
            "max_attempts": plan.max_attempts,
            "max_sequences": 10,
            "max_batched_tokens": 96,
            "outbox_memory": "2KiB",
        }
        proxies: tuple[Proxy, Proxy] = (to_workers, to_clients)
        run = _Run(plan, report, server, direct, client)
        injector = Injector(
            server,
            direct,
            workers,
            proxies,
            run.recorder,
            settings,
            random.Random(f"faults {plan.seed}"),
            count=plan.workers,
        )
        await run.carry_out(injector)
    return report


class _Run:
    def __init__(
        self,
        plan: Plan,
        report: Report,
        server: RedisServer,
        direct: redis.asyncio.Redis,
        client: AsyncClient,
    ) -> None:
        self.jobs: dict[str, Job] = {}
        self.recorder = Recorder(direct, self.jobs, durable=plan.fsync == "always")
        self._plan = plan
        self._report = report
        self._server = server
        self._direct = direct
        self._client = client
        self._dice = random.Random(f"work {plan.seed}")
        self._following: dict[str, asyncio.Task[None]] = {}
        self._views: list[View] = []
        self._last_end = time.monotonic()

    async def carry_out(self, injector: Injector) -> None:
        plan, report = self._plan, self._report
        start = time.monotonic()
        helpers = [
            asyncio.create_task(work)
            for work in (self.recorder.listen(), injector.stay_staffed(), self._inspect(injector))
        ]
        try:
            faults = schedule(random.Random(f"schedule {plan.seed}"), plan.weights, plan.kills)
            injecting = asyncio.create_task(self._inject(injector, faults, plan.minutes * 60))
            while not injecting.done():
                self._keep_busy()
                injector.in_flight = set(self._following)
                await asyncio.wait([*self._following.values(), injecting], return_when="FIRST_COMPLETED")
                self._reap()
            await injecting
            while self._following:
                if time.monotonic() > self._last_end + _STUCK:
                    raise Violation(f"these do not end: {sorted(self._following)}")
                await asyncio.wait(self._following.values(), timeout=1.0, return_when="FIRST_COMPLETED")
                self._reap()
            await self._check_end(injector)
        except (AssertionError, TimeoutError) as problem:
            report.violations.append(f"{type(problem).__name__}: {problem}")
        finally:
            await _cancel([*helpers, *self._following.values()])
        report.seconds = time.monotonic() - start
        report.faults = injector.faults
        report.poison_kills = injector.poison_kills
        report.violations += [*map(str, self.recorder.violations), *injector.problems]
        report.subscribers = len(self._views)
        report.messages = self.recorder.messages
        report.repetitions = self.recorder.repetitions
        report.resubmitted = sum(job.resubmitted for job in self.jobs.values())
        recovery = self.recorder.recovery
        report.recoveries = len(recovery.seconds)
        report.recovery_median, report.recovery_worst = recovery.median, recovery.worst

    async def _inject(self, injector: Injector, faults: Any, seconds: float) -> None:
        end = time.monotonic() + seconds
        dice = random.Random(f"pauses {self._plan.seed}")
        for fault in faults:
            await asyncio.sleep(dice.uniform(0.0, 0.5))
            await injector.inject(fault)
            if seconds and time.monotonic() > end:
                return

    async def _inspect(self, injector: Injector) -> None:
        while True:
            await asyncio.sleep(0.3)
            if injector.in_flight:
                await self.recorder.inspect(random.choice(sorted(injector.in_flight)))

    def _keep_busy(self) -> None:
        while len(self._following) < self._plan.concurrency:
            now_ms = int(time.time() * 1000)
            number = len(self.jobs)
            job = make_job(self._dice, f"s{self._plan.seed}", number, now_ms, poison=self._plan.poison)
            self.jobs[job.request.id] = job
            self._following[job.request.id] = asyncio.create_task(self._serve(job))

    async def _serve(self, job: Job) -> None:
        await submit(job, self._client, self._direct)
        durable = self._plan.fsync == "always"
        views = await asyncio.gather(
            *(
                follow(job, kind, self._client, self._direct, self._dice, durable=durable)
                for kind in job.subscribers
            )
        )
        for view in views:
            view.check()
        self._views += views

    def _reap(self) -> None:
        for name, task in list(self._following.items()):
            if not task.done():
                continue
            del self._following[name]
            self._last_end = time.monotonic()
            try:
                task.result()
            except Exception as problem:
                self._report.violations.append(f"{name}: {type(problem).__name__}: {problem}")

    async def _check_end(self, injector: Injector) -> None:
        keys = Keys()
        await eventually(self._queues_are_empty, _STUCK)
        await injector.stop_all()
        report = self._report
        ended, tokens, problems = await check_logs(
            self._direct, self.jobs, self._views, durable=self._plan.fsync == "always"
        )
        report.ended, report.tokens = ended, tokens
        report.violations += problems
        for name in keys.queues(MODEL):
            if await self._direct.exists(name):
                pending: Any = await self._direct.xpending(name, "workers")
                if pending["pending"]:
                    report.violations.append(f"{name}: {pending['pending']} entries still owned")
        with self._server.connect() as client:
            report.violations += [f"{name}: has no TTL" for name in immortal_keys(client)]

    async def _queues_are_empty(self) -> bool:
        return not any([await self._direct.xlen(name) for name in Keys().queues(MODEL)])


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    """Until they have ended: in Python 3.11 ``wait_for`` may forget a cancellation."""
    while tasks:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=1.0)
        tasks = [task for task in tasks if not task.done()]
