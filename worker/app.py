"""Start-up, task group and drain of a worker."""

import logging
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus
from prometheus_client import CollectorRegistry

from ..clients.spans import tracer
from .activity import activity
from .assembly import Assembly, assemble
from .broker.broker import open_broker
from .broker.lease import Record
from .broker.settings import BrokerSettings
from .config import WorkerConfig, make_worker_name, parse_size
from .health import Health
from .inbox import Inbox
from .logs import without_password
from .operator_port import operator_port
from .serve import Observer, ServeLoop
from .telemetry import Telemetry
from .tracing import Traces

log = logging.getLogger(__name__)


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
        ValueError: what the broker cannot use, such as a Redis URL; before anything is loaded.
        what ``assemble`` raises; and whatever ends the engine: its requests then go to others as their leases
        expire, each charged with an attempt.
    """
    settings = _broker_settings(config)
    registry, health = CollectorRegistry(), Health(config.lease)
    with ExitStack() as stack:
        if config.metrics_port is not None:  # from the start, to tell a worker that loads from a dead one
            host = config.metrics_host
            port = stack.enter_context(operator_port(host, config.metrics_port, registry, health))
            log.info("metrics: http://%s:%d/metrics", host, port)
        assembly = await anyio.to_thread.run_sync(assemble, config)
        for fact in assembly.facts:
            log.info(fact)
        settings = replace(settings, model=assembly.served_name)
        await _serve(config, settings, assembly, registry, health, observe, on_ready, stop)


def _broker_settings(config: WorkerConfig) -> BrokerSettings:
    return BrokerSettings(
        url=config.redis,
        model=config.served_name or "unnamed",  # until it is loaded
        name=config.name or make_worker_name(),
        namespace=config.namespace,
        lease=config.lease,
        ageing=config.ageing,
        max_attempts=config.max_attempts,
        result_ttl=config.result_ttl,
        timeout=config.redis_timeout,
        max_outbox_bytes=parse_size("outbox_memory", config.outbox_memory),
    )


async def _serve(
    config: WorkerConfig,
    settings: BrokerSettings,
    assembly: Assembly,
    registry: CollectorRegistry,
    health: Health,
    observe: Observer | None,
    on_ready: Callable[[Assembly], None] | None,
    stop: anyio.Event | None,
) -> None:
    engine = assembly.engine
    release = version("headrace")  # reads files

    def record() -> Record:
        status = engine.status
        return {
            "model": assembly.served_name,
            "version": release,
            "running": status.running,
            "waiting": status.waiting,
            "blocks_total": status.blocks_total,
            "blocks_free": status.blocks_free,
            "tokens_per_second": round(telemetry.tokens_per_second, 1),
            "room": engine.credits(broker.clock.now_ms())[-1],
            **activity(engine.snapshot(), telemetry.recent_first_tokens()),
        }

    traces = None
    if config.traces:
        traces = Traces(tracer("headrace-worker"), assembly.served_name, settings.name)
    async with open_broker(settings, record=record, progressing=lambda: health.progressing) as broker:
        telemetry = Telemetry(
            registry,
            assembly.served_name,
            version("headrace"),
            lambda: engine.status,
            broker.counters,
            lambda: broker.queue_watch.latest,
            None if traces is None else traces.ended,
        )
        inbox = Inbox(broker, assembly.preparation, telemetry)
        serve_loop = ServeLoop(engine, broker, inbox, telemetry, grace=config.grace, observe=observe)
        health.serving(
            lambda: serve_loop.stepping_for, lambda: broker.leases.renewed_at, lambda: serve_loop.draining
        )
        async with anyio.create_task_group() as tasks:
            # First of all: a signal that comes once requests are held must hand them back.
            if stop is None:
                await tasks.start(_drain_on_signal, serve_loop, config.grace)
            else:
                tasks.start_soon(_drain_on_event, serve_loop, stop)
            tasks.start_soon(broker.run)
            if config.metrics_port is not None:
                tasks.start_soon(broker.queue_watch.run)
                tasks.start_soon(health.beat)
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
            telemetry.stopped()
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
