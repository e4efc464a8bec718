"""The port for operators and their machines: metrics, and probes of life and readiness, over HTTP."""

import json
import socket
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import Thread
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest

from .health import Health

_SECONDS = 10.0
"""For a client to say what it wants, and to take it."""


@contextmanager
def operator_port(host: str, port: int, registry: CollectorRegistry, health: Health) -> Generator[int]:
    """Serve ``/metrics``, ``/healthz`` and ``/readyz`` from threads; gives the port, which may be any for 0.

    Raises:
        OSError: the port is taken, or the address not this machine's.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family = found[0][0]

    class Server(ThreadingHTTPServer):
        address_family = family
        daemon_threads = True

        def server_bind(self) -> None:
            TCPServer.server_bind(self)  # without HTTPServer's look into the DNS for its own name

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that goes away is no matter for the log."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _SECONDS
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/metrics":
                    self._answer(200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry))
                case "/healthz":
                    self._say(health.liveness(), good="alive")
                case "/readyz":
                    self._say(health.readiness(), good="ready")
                case _:
                    self._answer(404, "text/plain", b"/metrics, /healthz, /readyz\n")

        def _say(self, status: str, good: str) -> None:
            body = json.dumps({"status": status}).encode()
            self._answer(200 if status == good else 503, "application/json", body)

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's names
            """Probes come every few seconds."""

    with Server((host, port), Handler) as server:
        thread = Thread(target=server.serve_forever, name="operator port", daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
