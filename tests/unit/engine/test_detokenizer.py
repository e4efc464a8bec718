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


def decoders_of_byte_fallback() -> dict[str, decoders.Decoder]:
    replace, fallback, fuse = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()
    return {
        "gemma": decoders.Sequence([replace, fallback, fuse]),
        "llama": decoders.Sequence([replace, fallback, fuse, decoders.Strip(" ", 1, 0)]),
        "metaspace": decoders.Sequence([fallback, decoders.Metaspace()]),
    }


def in_bytes(detokenizer: Detokenizer, text: str) -> list[int]:
    """The text in tokens of one byte each, which both kinds of vocabulary have."""
    if not detokenizer.byte_tokens:
        return detokenizer.tokenizer.encode(text).ids
    tokens = {byte: token for token, byte in detokenizer.byte_tokens.items()}
    return [tokens[byte] for byte in text.encode()]


def any_detokenizer(name: str) -> Detokenizer:
    if name == "byte-level":
        return DETOKENIZERS[name]
    tokenizer = byte_fallback_tokenizer()
    tokenizer.decoder = decoders_of_byte_fallback()[name]
    return Detokenizer.of(tokenizer)


EVERY_KIND = ["byte-level", *decoders_of_byte_fallback()]
CHARACTERS = st.characters(exclude_categories=["Cs"])


@st.composite
def texts_of_blocks(draw: st.DrawFn) -> str:
    """Text of one block of 256 code points, any of them, and sometimes of anything."""
    block = draw(st.integers(0, 0x10FF).filter(lambda block: not 0xD8 <= block <= 0xDF)) << 8
    return draw(st.text(st.integers(block, block + 255).map(chr) | CHARACTERS, max_size=60))


@pytest.mark.parametrize("name", EVERY_KIND)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_text_in_bytes_is_whole_whatever_its_length_and_wherever_a_stream_resumes(
    name: str, data: st.DataObject
) -> None:
    detokenizer = any_detokenizer(name)
    words = [token for token in map(detokenizer.tokenizer.token_to_id, ["▁the", "a", "水"]) if token]
    pieces = data.draw(st.lists(texts_of_blocks(), max_size=4))
    output: list[int] = []
    for piece in pieces:
        output += in_bytes(detokenizer, piece)
        output += data.draw(st.lists(st.sampled_from(words), max_size=2)) if words else []
    whole = detokenizer.decode(output)
    assert streamed(detokenizer, [], output) == whole
    cut = data.draw(st.integers(0, len(output)))
    before = detokenizer.stream([], ())
    given_out = "".join(before.push(token) for token in output[:cut])
    assert streamed(detokenizer, [], output)[len(given_out) :] == whole.removeprefix(given_out)
    assert whole.startswith(given_out)
    if not whole:
        return
    at = data.draw(st.integers(0, len(whole) - 1))
    stop = whole[at : at + data.draw(st.integers(1, 4))]
    assert streamed(detokenizer, [], output, (stop,)) == whole[: whole.index(stop)]


@pytest.mark.parametrize("name", decoders_of_byte_fallback())
def test_a_long_run_of_bytes_does_not_wait_for_its_end(name: str) -> None:
    detokenizer = any_detokenizer(name)
    stream = detokenizer.stream([], ())
    given_out = "".join(stream.push(token) for token in in_bytes(detokenizer, "ꀀ" * 30))
    assert given_out == "ꀀ" * 30


@pytest.mark.parametrize("name", decoders_of_byte_fallback())
def test_a_space_after_a_run_of_bytes_is_kept(name: str) -> None:
    detokenizer = any_detokenizer(name)
    the = detokenizer.tokenizer.token_to_id("▁the")
    run = in_bytes(detokenizer, "한")
    assert streamed(detokenizer, run, [the]) == " the"
    assert streamed(detokenizer, [], [*run, the]) == "한 the"


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
