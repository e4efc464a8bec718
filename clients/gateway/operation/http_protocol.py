"""HTTP/1.1 (httptools) and HTTP/1.0 (h11) on one port."""

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_LONGEST_LINE: Final = 65_536
"""Bytes of a request line; the parser refuses longer ones."""


class HttpProtocol(HttpToolsProtocol):
    """httptools for HTTP/1.1; a connection of HTTP/1.0 is handed to h11, which ends a body by closing.

    httptools would send chunked encoding to HTTP/1.0 clients, which take the chunk sizes for content.
    """

    _first_line: bytes | None = b""
    """The connection's first line as received so far; None once its version is known."""

    def data_received(self, data: bytes) -> None:
        if self._first_line is None:
            super().data_received(data)
            return
        data = self._first_line + data
        # An empty line before the request line is ignored (RFC 9112, 2.2).
        line, end, _ = data.lstrip(b"\r\n").partition(b"\n")
        if not end and len(data) < _LONGEST_LINE:
            self._first_line = data
            return
        self._first_line = None
        if line.rstrip().endswith(b" HTTP/1.0"):
            self._hand_over(data)
        else:
            super().data_received(data)

    def _hand_over(self, data: bytes) -> None:
        self.connections.discard(self)
        protocol = H11Protocol(self.config, self.server_state, self.app_state, cast(Any, self.loop))
        protocol.connection_made(self.transport)
        self.transport.set_protocol(cast(asyncio.BaseProtocol, protocol))
        protocol.data_received(data)
