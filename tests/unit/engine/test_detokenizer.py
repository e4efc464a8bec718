"""Streamed text equals the text of all tokens at once, cut before the first stop string."""

import pytest
from fake_runner import byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from headrace.worker.engine.detokenizer import Detokenizer

WORDS = ["▁the", "▁mill", "wheel", "a", "b", "ab", "▁", "\n", "水"]


def byte_fallback_tokenizer() -> Tokenizer:
    """Words with ``▁`` for a space, and a token for each byte, as sentencepiece models have."""
    symbols = [*WORDS, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(
        models.BPE({symbol: at for at, symbol in enumerate(symbols)}, [], byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer


DETOKENIZERS = {
    "byte-level": Detokenizer.of(byte_tokenizer()),
    "byte-fallback": Detokenizer.of(byte_fallback_tokenizer()),
}


def streamed(
    detokenizer: Detokenizer, prompt: list[int], output: list[int], stop: tuple[str, ...] = ()
) -> str:
    stream = detokenizer.stream(prompt, stop)
    return "".join(stream.push(token) for token in output) + stream.flush()


@pytest.mark.parametrize("name", DETOKENIZERS)
@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_stream_equals_decoding_everything(name: str, data: st.DataObject) -> None:
    detokenizer = DETOKENIZERS[name]
    size = detokenizer.tokenizer.get_vocab_size()
    output = data.draw(st.lists(st.integers(0, size - 1), max_size=31))
    assert streamed(detokenizer, [], output) == detokenizer.decode(output)


@pytest.mark.parametrize("name", DETOKENIZERS)
def test_prompt_that_ends_within_a_character_does_not_come_back(name: str) -> None:
    detokenizer = DETOKENIZERS[name]
    size = detokenizer.tokenizer.get_vocab_size()
    broken = [token for token in range(size) if detokenizer.decode([token]) == "\ufffd"][:1]
    letters = [token for token in range(size) if detokenizer.decode([token]) == "a"][:1]
    assert streamed(detokenizer, [*letters, *broken], letters * 3) == "aaa"


def test_leading_space_of_a_continued_sentence_is_kept() -> None:
    tokenizer = byte_fallback_tokenizer()
    tokenizer.decoder = decoders.Metaspace()
    detokenizer = Detokenizer.of(tokenizer)
    the, mill = tokenizer.token_to_id("▁the"), tokenizer.token_to_id("▁mill")
    assert streamed(detokenizer, [the], [mill, mill]) == " mill mill"


def test_no_text_before_a_character_is_complete() -> None:
    tokenizer = byte_tokenizer()
    detokenizer = Detokenizer.of(tokenizer)
    stream = detokenizer.stream([], ())
    tokens = tokenizer.encode("水!").ids
    assert len(tokens) == 4
    assert [stream.push(token) for token in tokens] == ["", "", "水", "!"]


TEXT = st.text(alphabet="abc", max_size=25)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=3).map(tuple)


@given(TEXT, STOPS)
@settings(max_examples=500, deadline=None)
def test_stop_strings_cut_and_nothing_else_is_lost(text: str, stop: tuple[str, ...]) -> None:
    detokenizer = DETOKENIZERS["byte-level"]
    stream = detokenizer.stream([], stop)
    given_out = ""
    pushed = ""
    for token in detokenizer.tokenizer.encode(text).ids:
        given_out += stream.push(token)
        pushed += detokenizer.decode([token])
        found = [pushed.index(item) for item in stop if item in pushed]
        assert stream.stopped == bool(found)
        if found:
            assert given_out == pushed[: min(found)]
            assert stream.flush() == ""
            return
        # Held back is only what might become a stop string.
        held = pushed[len(given_out) :]
        assert not held or any(item.startswith(held) for item in stop)
    assert given_out + stream.flush() == text
