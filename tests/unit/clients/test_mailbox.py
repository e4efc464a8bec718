"""A mailbox holds what fits, in order, and says when the log must be read instead."""

import pytest

from headrace.clients.channels import MAX_BYTES, MAX_MESSAGES, Mailbox

pytestmark = pytest.mark.anyio


async def test_messages_come_out_in_order() -> None:
    box = Mailbox()
    for message in (b"a", b"b", b"c"):
        box.put(message)
    assert [await box.receive(10) for _ in range(3)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("size", [1, 100_000])
async def test_a_full_mailbox_starts_anew_and_says_so_first(size: int) -> None:
    box = Mailbox()
    for _ in range(min(MAX_MESSAGES, MAX_BYTES // size)):
        box.put(b"x" * size)
    box.put(b"y" * size)
    assert await box.receive(10) is None
    assert await box.receive(10) == b"y" * size
    assert await box.receive(0) is None


async def test_what_was_read_makes_room() -> None:
    box = Mailbox()
    for _ in range(3 * MAX_MESSAGES):
        box.put(b"x" * (MAX_BYTES // 2))
        assert await box.receive(10) == b"x" * (MAX_BYTES // 2)


async def test_a_miss_is_told_once_and_before_what_came_after_it() -> None:
    box = Mailbox()
    box.put(b"before")
    box.mark_missed()
    box.put(b"after")
    assert await box.receive(10) is None
    assert await box.receive(10) == b"after"


async def test_silence_is_none() -> None:
    assert await Mailbox().receive(0.01) is None
