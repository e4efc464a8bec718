"""A Redis Cluster of three masters on loopback, whose slots tests move about, and replicas of them."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis
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

    @property
    def tls_url(self) -> str:
        """The same through TLS, for servers that were given certificates."""
        hosts = ",".join(f"127.0.0.1:{server.options['tls-port']}" for server in self.servers[:2])
        return f"rediss+cluster://{hosts}"

    def join(self) -> None:
        """Make one cluster of them; returns when every node agrees."""
        first, share = self.servers[0], _SLOTS // len(self.servers)
        for number, server in enumerate(self.servers):
            last = _SLOTS if server is self.servers[-1] else (number + 1) * share
            with server.connect() as client:
                # Each its own, as redis-cli does it: of two that have the same, one takes a later one at any
                # moment, and with it may claim back a slot that was just moved; its keys are deleted then.
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", number * share, last - 1)
                client.execute_command(
                    "CLUSTER", "MEET", "127.0.0.1", first.port, first.options["cluster-port"]
                )
        self._wait("cluster_known_nodes", "3")
        self._wait("cluster_state", "ok")

    @contextmanager
    def replica_of(self, master: RedisServer) -> Iterator[RedisServer]:
        """A further node that has the data of ``master``, and takes its place when it falls."""
        options = {**master.options, "cluster-port": str(free_port()), "repl-diskless-sync-delay": "0"}
        folder = master.folder.with_name(f"{master.folder.name}-replica")
        with running(RedisServer(master.kind, folder, options=options)) as server:
            with master.connect() as client:
                master_id = client.execute_command("CLUSTER", "MYID")
            with server.connect() as client:
                client.execute_command(
                    "CLUSTER", "MEET", "127.0.0.1", master.port, master.options["cluster-port"]
                )
                self._until(lambda: self._replicates(client, master_id))
                self._until(lambda: client.info("replication")["master_link_status"] == "up")
                self._until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
            for other in self.servers:
                with other.connect() as client:
                    self._until(lambda c=client: str(server.port) in str(c.execute_command("CLUSTER SLOTS")))
            yield server

    def owner(self, key: str, *, asked: int = 0) -> RedisServer:
        """By what the node ``asked`` says."""
        slot = key_slot(key.encode())
        with self.servers[asked].connect() as client:
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
            self._until(lambda: not _move_some_keys(old, slot, target.port))
            for server in (target, source, *self.servers):
                with server.connect() as client:
                    client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", new_id)

    def immortal_keys(self) -> list[str]:
        found: list[str] = []
        for server in self.servers:
            with server.connect() as client:
                found += immortal_keys(client)
        return found

    def _replicates(self, client: redis.Redis, master_id: bytes) -> bool:
        """Once it has heard of its master."""
        try:
            return bool(client.execute_command("CLUSTER", "REPLICATE", master_id))
        except redis.ResponseError:
            return False

    def _until(self, condition: Callable[[], object]) -> None:
        give_up = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < give_up, "the cluster does not form"
            time.sleep(0.05)

    def _wait(self, field: str, value: str) -> None:
        for server in self.servers:
            with server.connect() as client:
                self._until(lambda c=client: c.execute_command("CLUSTER INFO")[field] == value)


@contextmanager
def three_masters(
    kind: Kind, folder: Path, options: dict[str, str] | None = None, *, node_timeout_ms: int = 15000
) -> Iterator[ThreeMasters]:
    """Each gets ``options``; a TLS port of its own where they name a certificate."""
    with ExitStack() as stack:
        servers: list[RedisServer] = []
        for number in range(3):
            own = {
                "cluster-enabled": "yes",
                "cluster-config-file": "nodes.conf",
                "cluster-node-timeout": str(node_timeout_ms),
                "cluster-port": str(free_port()),
                **(options or {}),
            }
            if "tls-cert-file" in own:
                own |= {"tls-port": str(free_port()), "tls-cluster": "yes"}
            servers.append(stack.enter_context(running(RedisServer(kind, folder / str(number), options=own))))
        cluster = ThreeMasters(servers)
        cluster.join()
        yield cluster


def _move_some_keys(source: redis.Redis, slot: int, port: int) -> list[bytes]:
    """Those that it moved; none when none is left."""
    keys: list[bytes] = source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100)
    if keys:
        source.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)
    return keys
