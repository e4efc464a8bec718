"""Key names: the contract's, each group in one cluster slot, and nothing from outside that escapes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from headrace.clients.protocol import LANES, Keys, lane_of


def test_names_are_those_of_the_contract() -> None:
    keys = Keys("ns")
    assert keys.queue("org/model-7b", "high", 3) == "ns:queue:{org/model-7b}:high:3"
    assert keys.service("m") == "ns:service:{m}"
    assert keys.control("m") == "ns:control:{m}"
    assert keys.dead("m") == "ns:dead:{m}"
    assert keys.worker("m", "gpu-0") == "ns:worker:{m}:gpu-0"
    assert keys.request("r-1") == "ns:request:{r-1}"
    assert keys.events("r-1") == "ns:events:{r-1}"
    assert keys.channel("r-1") == "ns:channel:{r-1}"
    assert Keys().request("r") == "headrace:request:{r}"


def test_queues_go_by_priority_and_lane() -> None:
    queues = Keys("ns").queues("m")
    assert queues[0] == "ns:queue:{m}:high:0"
    assert queues[16] == "ns:queue:{m}:normal:0"
    assert queues[47] == "ns:queue:{m}:low:15"
    assert len(set(queues)) == 48


@given(st.text())
def test_an_id_names_its_keys_or_is_refused(text: str) -> None:
    keys = Keys("ns")
    if re.fullmatch(r"[A-Za-z0-9_-]{1,128}", text):
        names = {keys.request(text), keys.events(text), keys.channel(text)}
        assert len(names) == 3
        assert len({key_slot(name.encode()) for name in names}) == 1
    else:
        for name in (keys.request, keys.events, keys.channel):
            with pytest.raises(ValueError, match="id: must match"):
                name(text)


@given(st.text(), st.text())
def test_no_two_ids_share_a_key(one: str, other: str) -> None:
    names = []
    for text in (one, other):
        try:
            names.append(Keys().request(text))
        except ValueError:
            return
    assert (names[0] == names[1]) == (one == other)


@pytest.mark.parametrize("text", ["", "a}b", "{", "a\n", "a b", "é", "x" * 201])
def test_a_model_that_would_escape_its_hash_tag_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="model: must match"):
        Keys().service(text)


@pytest.mark.parametrize("text", ["", "a{b", "*", "a\n"])
def test_a_namespace_that_would_escape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="namespace: must match"):
        Keys(text)


def test_lanes_and_priorities_have_limits() -> None:
    with pytest.raises(ValueError, match="lane: must be from 0 to 15, got 16"):
        Keys().queue("m", "high", LANES)
    with pytest.raises(ValueError, match="priority: must be one of high, normal, low"):
        Keys().queue("m", "urgent", 0)


@given(st.none() | st.text())
def test_a_tenant_keeps_its_lane(tenant: str | None) -> None:
    assert 0 <= lane_of(tenant) < LANES
    assert lane_of(tenant) == lane_of(tenant)


def test_lanes_are_the_crc32_of_the_tenant() -> None:
    # 0xCBF43926 is the check value that the CRC-32 standards give for "123456789".
    assert [lane_of(tenant) for tenant in (None, "", "123456789")] == [0, 0, 0xCBF43926 % 16]


NAMES = st.text("a0._:/@+-", min_size=1, max_size=6) | st.text("aA0._:/@+-{}*?[]\n é", max_size=12)


@given(NAMES, NAMES, NAMES, NAMES)
def test_models_and_namespaces_have_keys_of_their_own_or_are_refused(
    namespace: str, model: str, other_namespace: str, other_model: str
) -> None:
    names: list[set[str]] = []
    for one, served in ((namespace, model), (other_namespace, other_model)):
        try:
            keys = Keys(one)
            made = {keys.service(served), keys.control(served), keys.dead(served), *keys.queues(served)}
        except ValueError:
            assert not re.fullmatch(r"[A-Za-z0-9._:/@+-]+", one) or not re.fullmatch(
                r"[A-Za-z0-9._:/@+-]+", served
            )
            return
        assert {key_slot(name.encode()) for name in made} == {key_slot(served.encode())}
        assert all(name.startswith(f"{one}:") for name in made)
        names.append(made)
    assert names[0] == names[1] or names[0].isdisjoint(names[1])
    assert (names[0] == names[1]) == ((namespace, model) == (other_namespace, other_model))
