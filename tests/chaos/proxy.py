"""A TCP proxy in front of Redis that cuts, slows and freezes what goes through it."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Proxy:
    """Forwards connections to ``target`` (a port on the loopback interface). Use ``proxy_to``."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self.delay = 0.0
        """Seconds that each piece of data waits."""
        self.cuts = 0
        self._target = target
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._deaf: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self) -> None:
        """Reset every connection, whatever is under way on it."""
        self.cuts += len(self._writers)
        for writer in list(self._writers):
            sock = writer.get_extra_info("socket")
            if sock is not None:
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def freeze(self) -> None:
        """Nothing passes any more, though connections are accepted: a network that swallows packets."""
        self._flowing.clear()

    def thaw(self) -> None:
        """What was swallowed comes after all; new connections work."""
        self._flowing.set()

    def orphan(self) -> None:
        """Half-open: the present connections stay up and nothing comes through them again; new ones work."""
        self._deaf |= self._writers

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, far_writer}
        self._writers |= pair
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, far_writer))
                tasks.create_task(self._pump(far_reader, writer))
        except* (OSError, _Closed):
            pass
        finally:
            self._writers -= pair
            self._deaf -= pair
            for one in pair:
                one.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if self.delay:
                await asyncio.sleep(self.delay)
            await self._flowing.wait()
            if writer in self._deaf:
                continue
            writer.write(data)
            await writer.drain()
        raise _Closed


class _Closed(Exception):
    """One side has closed its connection."""


@asynccontextmanager
async def proxy_to(target: int) -> AsyncIterator[Proxy]:
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.thaw()
        proxy.cut()
