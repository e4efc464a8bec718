"""The gateway process: listening socket, signals, and a drain that loses no token of any stream."""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from math import ceil
from types import FrameType
from typing import Literal

import uvicorn

from ..app import create_app
from ..gateway import Gateway
from ..settings import GatewaySettings
from . import logs
from .http_protocol import HttpProtocol

_BACKLOG = 2048
_PINGS = 20.0
"""Seconds between pings on a WebSocket."""
_ERROR_WITHIN = 5
"""Seconds after the grace period to send the last errors and cancel requests in the queue."""

log = logging.getLogger(__name__)


class GatewayServer(uvicorn.Server):
    """uvicorn with a drain: resumable streams are ended at once, to be resumed at another gateway; other
    responses get the grace period, and an error if it ends before they are complete.

    A second signal ends the grace period.
    """

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self.gateway = gateway

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle signals while serving; unlike uvicorn, without raising them again: a drain is success."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        name = signal.Signals(sig).name
        if self.should_exit:
            log.info("%s again: cancelling the responses in flight", name)
            self.gateway.in_flight.cancel()
            return
        log.info("%s: draining; no new requests are accepted", name)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.gateway.slots.drain()
        grace = self.gateway.settings.drain_grace
        end = asyncio.get_running_loop().call_later(grace, self.gateway.in_flight.cancel)
        try:
            await super().shutdown(sockets)
        finally:
            end.cancel()


def make_server(settings: GatewaySettings) -> GatewayServer:
    """A server, not listening yet. Raises as ``create_app``."""
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        ws="websockets-sansio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        ws_ping_interval=_PINGS,
        ws_max_size=settings.max_body,
        timeout_graceful_shutdown=ceil(settings.drain_grace) + _ERROR_WITHIN,
    )
    return GatewayServer(config, app.state.gateway)


def run_gateway(settings: GatewaySettings, host: str, port: int, log_format: Literal["text", "json"]) -> None:
    """Serve until SIGTERM or SIGINT. Raises as ``make_server`` and ``listen``."""
    logs.configure(log_format)
    server = make_server(settings)
    listener = listen(host, port, settings.write_timeout)
    shown = f"[{host}]" if ":" in host else host
    log.info("gateway: http://%s:%d", shown, listener.getsockname()[1])
    access = (
        "no authentication, every client may use it"
        if settings.keys_file is None
        else f"API keys from {settings.keys_file}"
    )
    log.info("access: %s", access)
    with listener:
        server.run([listener])


def listen(host: str, port: int, write_timeout: float) -> socket.socket:
    """A listening socket; port 0 lets the system choose.

    Connections have TCP_NODELAY, and the system closes those whose peer acknowledges nothing for
    ``write_timeout`` seconds.

    Raises:
        OSError: the address is in use or not local.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, protocol, _, address = found[0]
    # asyncio sets TCP_NODELAY on connections of sockets that name their protocol.
    listener = socket.socket(family, socket.SOCK_STREAM, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(write_timeout * 1000))
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
