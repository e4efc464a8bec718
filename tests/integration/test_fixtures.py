"""The fixtures that other integration tests stand on."""

import pytest
import redis
from redis_servers import RedisServer, immortal_keys


def test_the_server_is_empty_and_of_the_kind_asked_for(
    redis_server: RedisServer, redis_client: redis.Redis
) -> None:
    assert redis_client.dbsize() == 0
    assert ("valkey_version" in redis_client.info("server")) == (redis_server.kind == "valkey")


def test_a_killed_private_server_comes_back_with_its_data(private_server: RedisServer) -> None:
    with private_server.connect() as client:
        client.set("kept", "1", ex=60)
        private_server.kill()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        private_server.start()
        assert client.get("kept") == b"1"


def test_only_queues_and_dead_letters_may_live_forever(redis_client: redis.Redis) -> None:
    redis_client.xadd("ns:queue:{m}:normal:0", {"r": "x"})
    redis_client.xadd("ns:dead:{m}", {"r": "x"})
    redis_client.hset("ns:request:{gone}", "status", "queued")
    redis_client.hset("ns:request:{kept}", "status", "queued")
    redis_client.expire("ns:request:{kept}", 60)
    assert immortal_keys(redis_client) == ["ns:request:{gone}"]
    redis_client.delete("ns:request:{gone}")
