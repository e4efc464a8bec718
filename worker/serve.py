"""The serve loop: the batch pulls from the queue at each iteration boundary, and decides everything."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import anyio

from .broker.broker import Broker
from .broker.control import Interrupts
from .displaced import Displaced
from .engine.engine import Engine
from .engine.step import Step
from .inbox import Inbox
from .telemetry import Telemetry

log = logging.getLogger(__name__)

Observer = Callable[[Step, Engine], None]


class ServeLoop:
    """One worker at work, from the first claim until it is drained."""

    def __init__(
        self,
        engine: Engine,
        broker: Broker,
        inbox: Inbox,
        telemetry: Telemetry,
        *,
        grace: float,
        observe: Observer | None = None,
    ) -> None:
        self._engine = engine
        self._broker = broker
        self._inbox = inbox
        self._telemetry = telemetry
        self._displaced = Displaced(engine, broker, inbox, telemetry)
        self._grace = grace
        self._observe = observe
        self._woken = anyio.Event()
        self._deadline: float | None = None
        self._stepping_since: float | None = None

    @property
    def stepping_for(self) -> float:
        """Seconds that the current engine step has taken so far; 0 between steps."""
        return 0.0 if self._stepping_since is None else time.monotonic() - self._stepping_since

    @property
    def draining(self) -> bool:
        return self._deadline is not None

    def drain(self, *, at_once: bool = False) -> None:
        """Take nothing more and end when nothing runs any more or ``grace`` is over; or now."""
        self._broker.intake.stop()
        self._deadline = time.monotonic() + (0.0 if at_once else self._grace)
        self._woken.set()

    async def run(self) -> None:
        """Serve until drained. What is unfinished then is still held by the broker."""
        engine, broker, inbox = self._engine, self._broker, self._inbox
        # Always the same thread: the libraries below keep state per thread.
        with ThreadPoolExecutor(1, thread_name_prefix="engine") as engine_thread:
            while not self._is_drained():
                self.join_batch()
                if engine.has_work and not broker.outbox.full:
                    await self.iterate(engine_thread)
                else:
                    await self._wait()
                broker.intake.offer(engine.credits(broker.clock.now_ms()), waiting=len(inbox))

    def join_batch(self) -> None:
        """The iteration boundary: new arrivals join the batch, and interrupted sequences leave it."""
        self._engine.add(self._inbox.take())
        interrupts = self._broker.control.take()
        self._interrupt(interrupts)
        self._displaced.turn(interrupts, draining=self.draining)

    async def iterate(self, engine_thread: ThreadPoolExecutor) -> None:
        """One engine step; its output is delivered while the next one computes."""
        step = await self._step(engine_thread)
        self._broker.outbox.put(step.deltas, step.finished)

    def _is_drained(self) -> bool:
        if self._deadline is None:
            return False
        if time.monotonic() >= self._deadline:
            return True
        return not (self._engine.has_work or len(self._inbox) or self._broker.num_owned)

    def _interrupt(self, interrupts: Interrupts) -> None:
        if not interrupts:
            return
        self._engine.cancel(interrupts.end)
        self._engine.drop(interrupts.drop)
        for request_id, reason in interrupts.end.items():
            self._inbox.end(request_id, reason)
        for request_id, epoch in interrupts.drop.items():
            self._inbox.drop(request_id, epoch)
            self._telemetry.dropped(request_id)

    async def _step(self, engine_thread: ThreadPoolExecutor) -> Step:
        self._stepping_since = start = time.monotonic()
        try:
            step = await asyncio.wrap_future(engine_thread.submit(self._engine.step))
        finally:
            self._stepping_since = None
        self._telemetry.stepped(step, time.monotonic() - start)
        if self._observe is not None:
            self._observe(step, self._engine)
        return step

    async def _wait(self) -> None:
        """Until there is something to compute, to interrupt, or to end."""
        room = self._engine.credits(self._broker.clock.now_ms())
        self._broker.intake.offer(room, waiting=len(self._inbox))
        self._woken = anyio.Event()
        timeout = None if self._deadline is None else min(0.1, max(0.0, self._deadline - time.monotonic()))
        with anyio.move_on_after(timeout):
            async with anyio.create_task_group() as tasks:

                async def first(condition: Callable[[], Awaitable[object]]) -> None:
                    await condition()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(first, self._broker.control.arrived)
                tasks.start_soon(first, self._woken.wait)
                if self._broker.outbox.full:
                    tasks.start_soon(first, self._broker.outbox.writable)
                else:
                    tasks.start_soon(first, self._inbox.arrived)
