"""URLs of Redis: what they name, what is refused, and that no password gets out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.clients.redis_url import Location
from headrace.worker.logs import without_password


def test_sentinels_a_service_and_a_database() -> None:
    location = Location.of(
        "rediss+sentinel://me:p%40ss@a:1,b,[::1]:3/main/2?sentinel_password=x&ssl_ca_certs=/ca"
    )
    assert location.kind == "sentinel"
    assert location.nodes == (("a", 1), ("b", 26379), ("::1", 3))
    assert (location.service, location.database) == ("main", 2)
    assert location.sentinel_options == (("password", "x"),)
    assert location.node_options() == {
        "username": "me",
        "password": "p@ss",
        "ssl": True,
        "ssl_ca_certs": "/ca",
    }
    assert location.publish == "PUBLISH"


def test_a_cluster_publishes_in_shards() -> None:
    location = Location.of("redis+cluster://a,b:7001")
    assert location.nodes == (("a", 6379), ("b", 7001))
    assert location.publish == "SPUBLISH"
    assert location.node_url("c", 5).startswith("redis://c:5")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://x", "scheme"),
        ("redis+ring://x", "scheme"),
        ("redis+sentinel://x", "SERVICE"),
        ("redis+sentinel://x/main/zero", "SERVICE"),
        ("redis+cluster://x/1", "no databases"),
        ("redis+cluster://x:port", "HOST:PORT"),
        ("redis+cluster://", "HOST:PORT"),
    ],
)
def test_other_urls_are_refused_with_the_reason(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Location.of(url)


@given(
    st.sampled_from(["redis", "rediss", "redis+cluster", "redis+sentinel"]),
    st.text("abcXYZ0189-_~", min_size=12),
    st.booleans(),
)
def test_a_password_is_in_no_representation(scheme: str, password: str, in_query: bool) -> None:
    place = "/main" if scheme.endswith("sentinel") else ""
    credentials, query = ("", f"?password={password}") if in_query else (f"me:{password}@", "")
    url = f"{scheme}://{credentials}host:1{place}{query}"
    assert password not in repr(Location.of(url))
    assert password not in without_password(url)
    assert "host:1" in without_password(url)
