"""The file of API keys."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.clients.gateway.access.api_keys import ANYBODY, Caller, KeyRing, make_key
from headrace.clients.protocol import PRIORITIES, Priority


@given(tenant=st.text(min_size=1, max_size=50).filter(lambda text: text.isascii() or text.isprintable()))
def test_what_is_made_can_be_read(tmp_path_factory: pytest.TempPathFactory, tenant: str) -> None:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    key, table = make_key(tenant, rate=5, burst=2, priority="low", streams=3, admin=True)
    path.write_text(table, encoding="utf-8")
    assert key not in table
    assert key.split("_", 2)[2] not in table
    caller = KeyRing(path).caller(key)
    assert caller is not None
    assert (caller.tenant, caller.rate, caller.burst, caller.priority) == (tenant, 5, 2, "low")
    assert (caller.streams, caller.admin) == (3, True)
    assert KeyRing(path).caller(key + "x") is None
    assert KeyRing(path).caller("") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x", "Expected"),
        ("[[key]]\nid = 'x'", "key.0.id"),
        ("[[keys]]", "keys"),
        ("[[key]]\nid = '000000000000'\nhash = 'x'\ntenant = 'a'", "key.0.hash"),
    ],
)
def test_a_broken_file_names_what_is_wrong(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=problem) as caught:
        KeyRing(path)
    assert str(path) in str(caught.value)


def test_two_keys_of_one_id(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    table = make_key("acme")[1]
    path.write_text(table + "\n" + table)
    with pytest.raises(ValueError, match="same id"):
        KeyRing(path)


@pytest.mark.parametrize("limits", [{"rate": 0}, {"burst": -1}, {"priority": "urgent"}, {"speed": 1}])
def test_limits_out_of_range(limits: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        make_key("acme", **limits)


@pytest.mark.parametrize("own", PRIORITIES)
@pytest.mark.parametrize("wanted", [None, *PRIORITIES])
def test_nobody_gets_above_its_priority(own: Priority, wanted: Priority | None) -> None:
    given_priority = Caller("k", "acme", own, admin=False).priority_for(wanted)
    assert PRIORITIES.index(given_priority) == max(PRIORITIES.index(own), PRIORITIES.index(wanted or own))
    assert ANYBODY.priority_for(wanted) == (wanted or "normal")
