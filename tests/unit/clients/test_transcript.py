"""A subscriber's fold over events: whatever happens to them on the way, each token and character once."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.clients.protocol import Delta, Done, Event, Usage
from headrace.clients.transcript import Transcript


def delta(seq: int, pos: int, tokens: list[int], text: str, epoch: int = 1) -> Delta:
    return Delta(seq, pos, epoch, tokens, text)


def test_only_the_part_beyond_what_is_there_is_taken() -> None:
    transcript = Transcript()
    assert transcript.take(delta(0, 0, [1, 2], "ab")) == delta(0, 0, [1, 2], "ab")
    assert transcript.take(delta(0, 0, [1, 2], "ab")) is None
    assert transcript.take(delta(1, 1, [2, 3], "bc")) == delta(2, 2, [3], "c")
    assert (transcript.tokens, transcript.characters) == (3, 3)


def test_text_may_come_after_its_token() -> None:
    transcript = Transcript()
    transcript.take(delta(0, 0, [1], "a"))
    transcript.take(delta(1, 1, [2], ""))
    assert transcript.take(delta(1, 1, [2], "<s")) == delta(2, 1, [], "<s")
    assert transcript.take(delta(1, 1, [2], "<s")) is None


def test_tokens_may_come_without_new_text() -> None:
    transcript = Transcript(1, 5)
    assert transcript.take(delta(0, 0, [1, 2], "Hello")) == delta(1, 5, [2], "")


def test_logprobs_are_cut_with_their_tokens() -> None:
    event = Delta(0, 0, 1, [1, 2], "ab", [(-0.1, []), (-0.2, [(2, -0.2)])])
    assert Transcript(1, 1).take(event) == Delta(1, 1, 1, [2], "b", [(-0.2, [(2, -0.2)])])


def test_text_counts_code_points() -> None:
    transcript = Transcript()
    transcript.take(delta(0, 0, [1], "😀é"))
    assert transcript.characters == 2


@pytest.mark.parametrize(
    "event", [delta(3, 2, [9], ""), delta(2, 3, [9], "x"), Done(3, 1, "stop", Usage())], ids=str
)
def test_a_gap_is_seen_and_never_crossed(event: Event) -> None:
    transcript = Transcript(2, 2)
    assert transcript.lacks_before(event)
    with pytest.raises(ValueError, match="past token 2 or character 2"):
        transcript.take(event)
    assert transcript == Transcript(2, 2)


def test_nothing_follows_done() -> None:
    transcript = Transcript()
    done = Done(0, 1, "cancelled", Usage())
    assert transcript.take(done) == done
    assert transcript.take(done) is None
    assert transcript.take(delta(0, 0, [1], "a")) is None


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    """A log as a worker writes it: growing counts, text held back and released, epochs going up."""
    events: list[Event] = []
    seq = pos = 0
    epoch = 1
    for _ in range(draw(st.integers(0, 12))):
        epoch += draw(st.integers(0, 1))
        text = draw(st.text(max_size=4))
        if seq and draw(st.booleans()):
            events.append(delta(seq - 1, pos, [seq - 1], text, epoch))
        else:
            tokens = list(range(seq, seq + draw(st.integers(1, 4))))
            events.append(delta(seq, pos, tokens, text, epoch))
            seq += len(tokens)
        pos += len(text)
    return [*events, Done(seq, epoch, "stop", Usage())]


@settings(deadline=None)
@given(log=logs(), data=st.data())
def test_any_delivery_with_the_log_as_fallback_gives_everything_once_in_order(
    log: list[Event], data: st.DataObject
) -> None:
    tokens = list(range(log[-1].seq))
    text = "".join(event.text for event in log if isinstance(event, Delta))
    rewritten: list[Event] = [delta(0, 0, tokens, text)] * bool(tokens) + [log[-1]]
    shuffle = random.Random(data.draw(st.integers()))
    # Each event is lost, or comes once or more, anywhere.
    channel = [event for event in log for _ in range(shuffle.choice([0, 1, 1, 1, 2]))]
    if data.draw(st.booleans()):
        shuffle.shuffle(channel)
    # Take up where an earlier subscriber stopped: after a prefix of the log.
    had = log[: data.draw(st.integers(0, len(log) - 1))]
    start = Transcript()
    for event in had:
        start.take(event)
    transcript = Transcript(start.tokens, start.characters)

    got: list[Event] = []
    for event in channel:
        if isinstance(event, Done) or transcript.lacks_before(event):
            for logged in rewritten if data.draw(st.booleans()) else log[: log.index(event) + 1]:
                assert not transcript.lacks_before(logged)
                got.append(transcript.take(logged))
        else:
            got.append(transcript.take(event))
    got += [transcript.take(event) for event in rewritten]

    pieces = [event for event in got if event is not None]
    deltas = [event for event in pieces if isinstance(event, Delta)]
    assert [token for piece in deltas for token in piece.tokens] == tokens[start.tokens :]
    assert "".join(piece.text for piece in deltas) == text[start.characters :]
    assert [type(event) for event in pieces].count(Done) == 1
    assert pieces[-1] == log[-1]
    at = (start.tokens, start.characters)
    for piece in deltas:
        assert (piece.seq, piece.pos) == at
        at = (piece.seq + len(piece.tokens), piece.pos + len(piece.text))
