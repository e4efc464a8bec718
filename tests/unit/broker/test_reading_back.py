"""Output of earlier epochs, read from a log."""

import pytest

from headrace.clients.protocol import Delta, encode_event
from headrace.worker.broker.claiming import read_back


def event(seq: int, pos: int, tokens: list[int], text: str, epoch: int = 1) -> bytes:
    return encode_event(Delta(seq, pos, epoch, tokens, text, [(-0.5, [(token, -0.5)]) for token in tokens]))


def test_events_of_several_epochs_add_up() -> None:
    resumed = read_back([event(0, 0, [5, 6], "ab"), event(2, 2, [7], "", epoch=2), event(3, 2, [8], "cé")], 4)
    assert resumed is not None
    assert (resumed.tokens, resumed.text) == ([5, 6, 7, 8], "abcé")
    assert resumed.logprobs == [(-0.5, [(token, -0.5)]) for token in (5, 6, 7, 8)]


def test_without_logprobs_there_are_none() -> None:
    resumed = read_back([encode_event(Delta(0, 0, 1, [5], "a"))], 1)
    assert resumed is not None
    assert resumed.logprobs is None


def test_an_empty_log_is_nothing_to_resume() -> None:
    assert read_back([], 0) is None


@pytest.mark.parametrize(
    ("events", "logged"),
    [
        ([event(0, 0, [5], "a"), event(2, 1, [7], "b")], 2),
        ([event(0, 0, [5], "a"), event(1, 3, [7], "b")], 2),
        ([event(0, 0, [5], "a")], 2),
        ([event(0, 0, [5], "a")], 0),
        ([b"\xc1"], 0),
        ([b"\x80"], 0),
    ],
)
def test_a_damaged_log_is_recognized(events: list[bytes], logged: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_back(events, logged)
