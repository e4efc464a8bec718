"""HTTP/1.1 and 1.0 on one port, each by a parser that does it well."""

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_LONGEST_LINE: Final = 65_536
"""Bytes of a request line; what is longer is refused anyway."""


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's faster protocol, which answers HTTP/1.0 in chunks as if it were 1.1: clients of 1.0 take the
    sizes of the chunks for content. Their connections are h11's, which ends a body by closing.
    """

    _begun: bytes | None = b""
    """The connection's first line as far as it has come; None once its version is known."""

    def data_received(self, data: bytes) -> None:
        if self._begun is None:
            super().data_received(data)
            return
        data = self._begun + data
        # A line break before a request line is passed over, as RFC 9112, 2.2, asks for.
        line, end, _ = data.lstrip(b"\r\n").partition(b"\n")
        if not end and len(data) < _LONGEST_LINE:
            self._begun = data
            return
        self._begun = None
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
