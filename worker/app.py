"""Start-up, the task group, drain: the only file that knows all the rooms."""

import logging
import signal
from collections.abc import Callable
from importlib.metadata import version

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from .activity import activity
from .assembly import Assembly, assemble
from .broker.broker import open_broker
from .broker.lease import Record
from .broker.settings import BrokerSettings
from .config import WorkerConfig, make_worker_name, parse_size
from .inbox import Inbox
from .logs import without_password
from .serve import Observer, ServeLoop
from .telemetry import Telemetry

log = logging.getLogger(__name__)

_STALLED = 120.0
"""Seconds in one engine step after which the engine counts as hung and its requests go to others."""


async def run_worker(
    config: WorkerConfig,
    *,
    assemble: Callable[[WorkerConfig], Assembly] = assemble,
    observe: Observer | None = None,
    on_ready: Callable[[Assembly], None] | None = None,
    stop: anyio.Event | None = None,
) -> None:
    """Load the model and serve until SIGTERM, SIGINT or ``stop``; then drain and return.

    ``assemble`` makes what is served, in a thread. ``observe`` is called after each engine step, ``on_ready``
    once requests are taken. Signals are left alone where ``stop`` is given.

    Raises:
        what ``assemble`` raises; and whatever ends the engine: its requests then go to others as their leases
        expire, each charged with an attempt.
    """
    assembly = await anyio.to_thread.run_sync(assemble, config)
    for fact in assembly.facts:
        log.info(fact)
    await _serve(config, assembly, observe, on_ready, stop)


async def _serve(
    config: WorkerConfig,
    assembly: Assembly,
    observe: Observer | None,
    on_ready: Callable[[Assembly], None] | None,
    stop: anyio.Event | None,
) -> None:
    engine = assembly.engine
    settings = BrokerSettings(
        url=config.redis,
        model=assembly.served_name,
        name=config.name or make_worker_name(),
        namespace=config.namespace,
        lease=config.lease,
        max_attempts=config.max_attempts,
        result_ttl=config.result_ttl,
        timeout=config.redis_timeout,
        max_outbox_bytes=parse_size("outbox_memory", config.outbox_memory),
    )

    def record() -> Record:
        status = engine.status
        return {
            "model": assembly.served_name,
            "version": version("headrace"),
            "running": status.running,
            "waiting": status.waiting,
            "blocks_total": status.blocks_total,
            "blocks_free": status.blocks_free,
            "tokens_per_second": round(telemetry.tokens_per_second, 1),
            "room": engine.room()[-1],
            **activity(engine.snapshot(), telemetry.recent_first_tokens()),
        }

    async with open_broker(
        settings, record=record, progressing=lambda: serve_loop.stepping_for < _STALLED
    ) as broker:
        telemetry = Telemetry(
            assembly.served_name, lambda: engine.status, broker.counters, version("headrace")
        )
        inbox = Inbox(broker, assembly.preparation, telemetry)
        serve_loop = ServeLoop(engine, broker, inbox, telemetry, grace=config.grace, observe=observe)
        if config.metrics_port is not None:
            port = telemetry.serve(config.metrics_host, config.metrics_port)
            log.info("metrics: http://%s:%d/metrics", config.metrics_host, port)
        async with anyio.create_task_group() as tasks:
            # First of all: a signal that comes once requests are held must hand them back.
            if stop is None:
                await tasks.start(_drain_on_signal, serve_loop, config.grace)
            else:
                tasks.start_soon(_drain_on_event, serve_loop, stop)
            tasks.start_soon(broker.run)
            tasks.start_soon(inbox.run)
            log.info(
                "worker %s: taking requests for %s from %s",
                settings.name,
                assembly.served_name,
                without_password(config.redis),
            )
            if on_ready is not None:
                on_ready(assembly)
            await serve_loop.run()
            with anyio.move_on_after(config.lease):
                await broker.outbox.flushed()
            with anyio.move_on_after(config.lease):
                await broker.hand_back()
            tasks.cancel_scope.cancel()
    log.info("worker %s: stopped", settings.name)


async def _drain_on_event(serve_loop: ServeLoop, stop: anyio.Event) -> None:
    await stop.wait()
    serve_loop.drain()


async def _drain_on_signal(
    serve_loop: ServeLoop, grace: float, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        draining = False
        async for number in signals:
            name = signal.Signals(number).name
            if draining:
                log.info("%s again: handing back what is unfinished", name)
            else:
                log.info("%s: taking no more requests, finishing for up to %g s", name, grace)
            serve_loop.drain(at_once=draining)
            draining = True
