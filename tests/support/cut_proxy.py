"""A way to a server that a test can cut and mend, as a network does."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class CutProxy:
    """Passes TCP connections on to ``target``, a URL, as long as it is not cut; ``heard`` is called with
    what comes from there, before it is passed on."""

    def __init__(self, target: str, heard: Callable[[bytes], None] | None = None) -> None:
        self._heard = heard
        parts = urlsplit(target)
        assert parts.hostname is not None
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Break all connections; new ones are broken at once."""
        with self._lock:
            self._is_cut = True
            ends = list(self._open)
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                refused = self._is_cut
            if refused:
                inner.close()
                continue
            try:
                outer = socket.create_connection(self._target, timeout=10)
            except OSError:
                inner.close()
                continue
            outer.settimeout(None)
            with self._lock:
                self._open |= {inner, outer}
            for source, sink, heard in ((inner, outer, None), (outer, inner, self._heard)):
                threading.Thread(target=self._pump, args=(source, sink, heard), daemon=True).start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, heard: Callable[[bytes], None] | None
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if heard is not None:
                    heard(data)
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(source)
        source.close()


@contextmanager
def cuttable(target: str) -> Iterator[CutProxy]:
    proxy = CutProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
