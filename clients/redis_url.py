"""Redis URLs: one server, Sentinels that know it, or a Cluster; what each becomes in the Redis client.

``redis://`` and ``unix://`` are the client library's own. Beside them:

- ``redis+sentinel://user:password@host:26379,host2:26379/SERVICE/DATABASE``
- ``redis+cluster://user:password@host:6379,host2:6379``

With ``rediss`` in place of ``redis`` everything goes through TLS. Options of the client library follow after
``?``, such as ``ssl_ca_certs=/etc/ssl/own-ca.pem``. Sentinels with a password of their own are given it as
``sentinel_password``, and ``sentinel_username``.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis.asyncio
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

Kind = Literal["single", "sentinel", "cluster"]

_PORTS: Final = {"sentinel": 26379, "cluster": 6379}


@dataclass(frozen=True, slots=True)
class Location:
    """Where Redis is."""

    kind: Kind
    url: str = field(repr=False)
    """For ``single``, as given; otherwise scheme, credentials and options without hosts: see ``node_url``."""
    nodes: tuple[tuple[str, int], ...] = ()
    """Sentinels, or the cluster's nodes to ask first."""
    service: str = ""
    database: int = 0
    sentinel_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, url: str) -> "Location":
        """Raises ``ValueError``, without the password."""
        scheme, _, rest = url.partition("://")
        secure, _, kind = scheme.partition("+")
        if not kind:
            return cls("single", url, database=parse_url(url).get("db", 0))
        if secure not in ("redis", "rediss") or kind not in ("sentinel", "cluster"):
            known = "redis, rediss, unix, redis+sentinel, rediss+sentinel, redis+cluster, rediss+cluster"
            raise ValueError(f"redis: the URL's scheme must be one of {known}, got {scheme!r}")
        parts = urlsplit(f"//{rest}")
        credentials, at, hosts = parts.netloc.rpartition("@")
        nodes = tuple(_host_and_port(host, _PORTS[kind]) for host in hosts.split(","))
        path = [part for part in parts.path.split("/") if part]
        query = parse_qsl(parts.query)
        own = tuple(
            (name.removeprefix("sentinel_"), value) for name, value in query if name.startswith("sentinel_")
        )
        shared = urlencode([(name, value) for name, value in query if not name.startswith("sentinel_")])
        base = f"{secure}://{credentials}{at}{{}}?{shared}"
        if kind == "cluster":
            if path:
                raise ValueError("redis: a cluster has no databases: the URL must end after its hosts")
            return cls("cluster", base, nodes)
        if not 1 <= len(path) <= 2 or not (len(path) == 1 or path[1].isdecimal()):
            raise ValueError("redis: a Sentinel URL must end in /SERVICE or /SERVICE/DATABASE")
        return cls("sentinel", base, nodes, path[0], int(path[1]) if len(path) == 2 else 0, own)

    @property
    def publish(self) -> Literal["PUBLISH", "SPUBLISH"]:
        """In a cluster a channel belongs to the node of its slot."""
        return "SPUBLISH" if self.kind == "cluster" else "PUBLISH"

    def node_url(self, host: str, port: int) -> str:
        shown = f"[{host}]" if ":" in host else host
        prefix, _, options = self.url.partition("{}")
        return f"{prefix}{shown}:{port}{options}"

    def node_options(self) -> dict[str, Any]:
        """The URL's credentials and options, without an address, as arguments for the client library."""
        options: dict[str, Any] = {**parse_url(self.node_url("localhost", 1))}
        for name in ("host", "port", "db", "connection_class"):
            options.pop(name, None)
        if self.url.startswith("rediss:"):
            options["ssl"] = True
        return options


def time_limits(timeout: float) -> dict[str, Any]:
    """Options of every connection: all in ``timeout`` seconds, and nothing repeated by the library.

    Only with RESP2 do replies have one form over all versions of servers and of redis-py.
    """
    return {
        "protocol": 2,
        "socket_timeout": timeout,
        "socket_connect_timeout": min(timeout, 5.0),
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,  # an account may lack the right to say which library it uses
    }


def open_client(location: Location, options: dict[str, Any]) -> redis.asyncio.Redis:
    """A client of one server, or of whichever server the Sentinels say is the master now."""
    if location.kind == "single":
        return redis.asyncio.Redis.from_url(location.url, **options)
    if location.kind == "cluster":
        raise ValueError("a cluster has no one server")
    shared = {
        name: value
        for name, value in location.node_options().items()
        if name not in ("username", "password", "health_check_interval")
    }
    sentinel = Sentinel(
        list(location.nodes), sentinel_kwargs={**shared, **dict(location.sentinel_options), **options}
    )
    pool = SentinelConnectionPool(
        location.service, sentinel, db=location.database, **{**location.node_options(), **options}
    )
    return redis.asyncio.Redis.from_pool(pool)


async def close_client(client: redis.asyncio.Redis) -> None:
    """Close the client's connections, those to Sentinels included."""
    await client.aclose()
    if isinstance(client.connection_pool, SentinelConnectionPool):
        for sentinel in client.connection_pool.sentinel_manager.sentinels:
            await sentinel.aclose()


def _host_and_port(text: str, default_port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        if not parts.hostname or parts.path:
            raise ValueError
        return parts.hostname, default_port if parts.port is None else parts.port
    except ValueError:
        raise ValueError(f"redis: not HOST or HOST:PORT in the URL: {text[:80]!r}") from None
