"""A Redis Cluster of three masters on loopback, whose slots tests move about."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from redis.crc import key_slot
from redis_servers import Kind, RedisServer, free_port, immortal_keys, running

_SLOTS = 16384


class ThreeMasters:
    """Use ``three_masters``."""

    def __init__(self, servers: list[RedisServer]) -> None:
        self.servers = servers

    @property
    def url(self) -> str:
        """Names two of the three nodes."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:2])
        return f"redis+cluster://{hosts}"

    def join(self) -> None:
        """Make one cluster of them; returns when every node agrees."""
        first, share = self.servers[0], _SLOTS // len(self.servers)
        for number, server in enumerate(self.servers):
            last = _SLOTS if server is self.servers[-1] else (number + 1) * share
            with server.connect() as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", number * share, last - 1)
                client.execute_command(
                    "CLUSTER", "MEET", "127.0.0.1", first.port, first.options["cluster-port"]
                )
        self._wait("cluster_known_nodes", "3")
        self._wait("cluster_state", "ok")

    def owner(self, key: str) -> RedisServer:
        """By what the first node says."""
        slot = key_slot(key.encode())
        with self.servers[0].connect() as client:
            for first, last, (_, port, *_), *_ in client.execute_command("CLUSTER", "SLOTS"):
                if first <= slot <= last:
                    return next(server for server in self.servers if server.port == port)
        raise AssertionError(f"nobody owns slot {slot}")

    @contextmanager
    def moving(self, key: str) -> Iterator[None]:
        """Inside, the slot of ``key`` is on its way to another node, and its keys still where they were."""
        slot, source = key_slot(key.encode()), self.owner(key)
        target = next(server for server in self.servers if server is not source)
        with source.connect() as old, target.connect() as new:
            old_id, new_id = (client.execute_command("CLUSTER", "MYID").decode() for client in (old, new))
            new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", old_id)
            old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", new_id)
            yield
            while keys := old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
                old.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            for server in (target, source, *self.servers):
                with server.connect() as client:
                    client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", new_id)

    def immortal_keys(self) -> list[str]:
        found: list[str] = []
        for server in self.servers:
            with server.connect() as client:
                found += immortal_keys(client)
        return found

    def _wait(self, field: str, value: str) -> None:
        give_up = time.monotonic() + 60
        for server in self.servers:
            with server.connect() as client:
                while client.execute_command("CLUSTER INFO")[field] != value:
                    assert time.monotonic() < give_up, "the cluster does not form"
                    time.sleep(0.05)


@contextmanager
def three_masters(kind: Kind, folder: Path, options: dict[str, str] | None = None) -> Iterator[ThreeMasters]:
    with ExitStack() as stack:
        servers: list[RedisServer] = []
        for number in range(3):
            own = {
                "cluster-enabled": "yes",
                "cluster-config-file": "nodes.conf",
                "cluster-node-timeout": "15000",
                "cluster-port": str(free_port()),
                **(options or {}),
            }
            servers.append(stack.enter_context(running(RedisServer(kind, folder / str(number), options=own))))
        cluster = ThreeMasters(servers)
        cluster.join()
        yield cluster
