"""Ids that say whose they are."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.clients.gateway.access.tenant_ids import belongs_to, id_for, new_id, part_of
from headrace.clients.protocol.keys import REQUEST_ID

TENANTS = st.none() | st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable())


@given(TENANTS, TENANTS)
def test_an_id_is_its_tenants_and_nobody_elses(owner: str | None, other: str | None) -> None:
    made = new_id(owner)
    assert REQUEST_ID.match(made)
    assert belongs_to(made, owner)
    assert belongs_to(part_of(made, 7), owner)
    assert belongs_to(made, other) == (owner == other)


@given(TENANTS, st.lists(st.binary(max_size=10), max_size=4), st.lists(st.binary(max_size=10), max_size=4))
def test_the_same_parts_and_only_those_give_the_same_id(
    tenant: str | None, parts: list[bytes], others: list[bytes]
) -> None:
    assert belongs_to(id_for(tenant, *parts), tenant)
    assert (id_for(tenant, *parts) == id_for(tenant, *others)) == (parts == others)


@given(st.text(alphabet="0123456789abcdef-\n", max_size=80) | st.text(max_size=80))
def test_what_is_no_such_id_is_nobodys(text: str) -> None:
    assert not belongs_to(text, "acme")
    assert not belongs_to(new_id("acme") + text[:1] + "\n", "acme")
