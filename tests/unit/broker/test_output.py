"""One request's output: whatever Redis confirms, loses or repeats, the events sent add up to the output."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.clients.protocol import Delta
from headrace.clients.transcript import Transcript
from headrace.worker.broker.output import Output
from headrace.worker.engine.step import Delta as NewTokens
from headrace.worker.engine.step import Finished


def finished(
    tokens: list[int], text: str, logprobs: list[tuple[float, list[tuple[int, float]]]] | None = None
) -> Finished:
    return Finished("a", 1, "stop", tokens, text, logprobs, 3, 0)


def new(seq: int, pos: int, tokens: list[int], text: str) -> NewTokens:
    return NewTokens("a", 1, seq, pos, tokens, text, [(-float(token), []) for token in tokens])


@settings(deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(1, 4), st.text(max_size=5)), max_size=20),
    earlier=st.tuples(st.integers(0, 5), st.text(max_size=5)),
    held_back=st.text(max_size=5),
    seed=st.integers(0, 2**32),
)
def test_a_log_that_confirms_and_loses_at_will_ends_complete(
    steps: list[tuple[int, str]], earlier: tuple[int, str], held_back: str, seed: int
) -> None:
    chance = random.Random(seed)
    count, start = earlier
    start = start if count else ""
    tokens, text = list(range(count)), start
    output = Output(count, len(start))
    log: list[Delta] = [Delta(0, 0, 1, list(range(count)), start)] if count else []
    boundaries = [count]
    for number, piece in steps:
        fresh = list(range(len(tokens), len(tokens) + number))
        output.append(new(len(tokens), len(text), fresh, piece))
        tokens += fresh
        text += piece
        boundaries.append(len(tokens))
        if chance.random() < 0.7 and (event := output.next_event(1)) is not None:
            log.append(event)
            assert output.confirm(event.seq + len(event.tokens))
        if chance.random() < 0.2:  # the server comes back with less
            keep = chance.choice([at for at in boundaries if at <= output.logged])
            log = [event for event in log if event.seq + len(event.tokens) <= keep]
            left = sum(len(event.tokens) for event in log)
            assert output.confirm(left)
    if held_back and tokens:
        output.append(new(len(tokens) - 1, len(text), [tokens[-1]], held_back))
        text += held_back
    output.ending = finished(tokens, text, [(-float(token), []) for token in tokens])
    reader = Transcript()
    got_tokens: list[int] = []
    got_text = ""
    rest = output.rest(2)
    for event in [*log, *([rest] if rest is not None else [])]:
        piece = reader.take(event)
        if isinstance(piece, Delta):
            assert event.tokens
            got_tokens += piece.tokens
            got_text += piece.text
    assert got_tokens == tokens
    assert got_text == (text if tokens else "")
    whole = output.whole(2)
    if tokens:
        assert whole == Delta(0, 0, 2, tokens, text, [(-float(token), []) for token in tokens])
    else:
        assert whole is None


def test_deltas_that_wait_are_merged_into_one_event() -> None:
    output = Output()
    output.append(new(0, 0, [1], "a"))
    output.append(new(1, 1, [2, 3], ""))
    output.append(new(3, 1, [4], "bc"))
    event = output.next_event(7)
    assert event == Delta(0, 0, 7, [1, 2, 3, 4], "abc", [(-1.0, []), (-2.0, []), (-3.0, []), (-4.0, [])])
    assert output.confirm(4)
    assert output.next_event(7) is None
    assert output.unlogged_bytes == 0


def test_a_token_count_that_is_no_boundary_is_not_this_log() -> None:
    output = Output(2, 2)
    output.append(new(2, 2, [1, 2, 3], "abc"))
    assert not output.confirm(3)
    assert not output.confirm(6)
    assert not output.confirm(0)
    assert output.logged == 2
    assert output.confirm(5)


@pytest.mark.parametrize(("seq", "pos"), [(2, 1), (0, 0), (1, 2), (1, 0)])
def test_a_delta_that_does_not_continue_is_refused(seq: int, pos: int) -> None:
    output = Output()
    output.append(new(0, 0, [1], "a"))
    with pytest.raises(ValueError, match="token 1, character 1"):
        output.append(new(seq, pos, [9] if seq else [], "x"))
