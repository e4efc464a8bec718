"""Tokens in OpenAI's log-probabilities: their bytes are the content's, in streams as in whole answers.

The text comes from the worker's own detokenizer, as it does in service: late, and cut before stop strings.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion as OpenAICompletion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from headrace.clients.gateway.openai.chat_format import ChatFormat
from headrace.clients.gateway.openai.completion import Completion
from headrace.clients.gateway.openai.completion_format import CompletionFormat
from headrace.clients.gateway.openai.vocabulary import Vocabulary
from headrace.clients.gateway.streams.position import StreamPosition
from headrace.clients.protocol import Delta, Done, Event, TokenLogprobs, Usage
from headrace.clients.result import Result, Timings, result_of
from headrace.worker.engine.detokenizer import Detokenizer

TEXTS = [
    "the mill and the stream, the wheel and the stone; the water and the race",
    "das Wässer über der Mühle · l'eau à côté du moulin  水が流れる 水車小屋",
]
SPECIAL = ["<bos>", "<eos>", "<unk>", "<turn>"]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama's and Gemma's, made from sentencepiece."""
    spaces = normalizers.Replace(" ", "▁")
    trained = Tokenizer(models.BPE())
    trained.normalizer = spaces
    trained.train_from_iterator(TEXTS[:1], trainers.BpeTrainer(vocab_size=60))
    state = json.loads(trained.to_str())["model"]
    symbols = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *state["vocab"]]
    vocabulary = {symbol: at for at, symbol in enumerate(symbols)}
    merges = [(left, right) for left, right in state["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))  # noqa: S106
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
    fuse = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(fuse)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    return tokenizer


def metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=150, special_tokens=SPECIAL))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.add_tokens(["moulin à eau"])
    return tokenizer


MAKERS = {"byte-level": byte_level, "byte-fallback": byte_fallback, "metaspace": metaspace}


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    return MAKERS[kind]()


@cache
def vocabulary_of(kind: str) -> Vocabulary:
    return Vocabulary(tokenizer_of(kind))


@dataclass
class Answer:
    """What a worker made of output tokens: its events, and what they add up to."""

    events: list[Event]

    @property
    def result(self) -> Result:
        *deltas, done = self.events
        return result_of("id", deltas, done, Timings())

    async def replayed(self) -> AsyncGenerator[Event]:
        for event in self.events:
            await asyncio.sleep(0)
            yield event


def answer_of(
    kind: str, prompt: list[int], output: list[int], stop: tuple[str, ...], sizes: list[int]
) -> Answer:
    """The events for ``output``, so many tokens in each as ``sizes`` say, again and again."""
    stream = Detokenizer.of(tokenizer_of(kind)).stream(prompt, stop)
    size = tokenizer_of(kind).get_vocab_size()
    events: list[Event] = []
    seq = pos = 0
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    text = ""

    def send() -> None:
        nonlocal seq, pos, tokens, logprobs, text
        if tokens or text:
            events.append(Delta(seq, pos, 1, tokens, text, logprobs))
        seq, pos = seq + len(tokens), pos + len(text)
        tokens, logprobs, text = [], [], ""

    for token in output:
        tokens.append(token)
        logprobs.append((-0.25, [(token, -0.25), ((token + 1) % size, -1.5)]))
        text += stream.push(token)
        if len(tokens) >= sizes[len(events) % len(sizes)] or stream.stopped:
            send()
        if stream.stopped:
            break
    text += stream.flush()
    send()
    return Answer([*events, Done(seq, 1, "stop" if stream.stopped else "length", Usage(3, seq, 0))])


@st.composite
def answers(draw: st.DrawFn, kind: str) -> Answer:
    tokenizer = tokenizer_of(kind)
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(TEXTS)
    written = tokenizer.encode(draw(texts), add_special_tokens=False).ids
    ids = st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=6)
    at = draw(st.integers(0, len(written)))
    output = draw(st.sampled_from([written, written[:at], written[:at] + draw(ids) + written[at:]]))
    prompt = draw(st.sampled_from([[], tokenizer.encode("the mill").ids, tokenizer.encode("水").ids[:-1]]))
    text = tokenizer.decode(output)
    stops = st.text(min_size=1, max_size=3)
    if text:
        begin = draw(st.integers(0, len(text) - 1))
        stops |= st.just(text[begin : begin + 3]) | st.just(text[begin : begin + 2] + "!")
    stop = draw(st.lists(stops, max_size=2))
    return answer_of(kind, prompt, output, tuple(stop), draw(st.lists(st.integers(1, 4), min_size=1)))


def chunks_of(completion: Completion, answers: list[Answer], position: StreamPosition) -> list[dict]:
    """The bodies of a stream's chunks, each with ``id`` of its frame."""

    async def read() -> list[bytes]:
        leave: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sources = [answer.replayed() for answer in answers]
        return [data async for data in completion.stream(sources, position, 60, leave)]

    chunks = []
    for data in asyncio.run(read()):
        fields = dict(line.split(": ", 1) for line in data.decode().rstrip("\n").split("\n"))
        if fields["data"] != "[DONE]":
            chunks.append({**json.loads(fields["data"]), "frame": fields.get("id")})
    return chunks


def chat(kind: str | None) -> Completion:
    return Completion("id", "m", 0, ChatFormat(kind and vocabulary_of(kind)))


def legacy(kind: str | None) -> Completion:
    return Completion("id", "m", 0, CompletionFormat(kind and vocabulary_of(kind)))


def broken(text: str) -> bool:
    return "\ufffd" in text


@pytest.mark.parametrize("kind", MAKERS)
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_bytes_of_the_tokens_are_those_of_the_content(kind: str, data: st.DataObject) -> None:
    answer = data.draw(answers(kind))
    (choice,) = ChatCompletion.model_validate(chat(kind).whole([answer.result])).choices
    content = choice.message.content or ""
    items = (choice.logprobs and choice.logprobs.content) or []
    joined = b"".join(bytes(item.bytes or []) for item in items)
    if not broken(content):
        assert joined == content.encode()
    elif kind == "byte-level":
        assert joined.decode("utf-8", "replace") == content
    for item in items:
        for top in (item, *item.top_logprobs):
            assert top.bytes is not None
        for top in item.top_logprobs:
            assert top.bytes == [] or top.token.startswith("bytes:") or bytes(top.bytes).decode() == top.token


@pytest.mark.parametrize("kind", MAKERS)
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_offsets_are_where_the_tokens_text_begins(kind: str, data: st.DataObject) -> None:
    answer = data.draw(answers(kind))
    (choice,) = OpenAICompletion.model_validate(legacy(kind).whole([answer.result])).choices
    if choice.logprobs is None:
        return
    offsets = choice.logprobs.text_offset
    assert offsets is not None
    assert choice.logprobs.tokens is not None
    assert len(offsets) == len(choice.logprobs.tokens)
    assert all(earlier <= later for earlier, later in pairwise(offsets))
    assert all(0 <= offset <= len(choice.text) for offset in offsets)
    if not broken(choice.text):
        (whole,) = chat(kind).whole([answer.result])["choices"]
        before = b""
        for offset, item in zip(offsets, whole["logprobs"]["content"], strict=True):
            assert offset == len(before.decode("utf-8", "ignore"))
            before += bytes(item["bytes"])


@pytest.mark.parametrize("kind", MAKERS)
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_streamed_equals_whole_for_each_choice(kind: str, data: st.DataObject) -> None:
    several = data.draw(st.lists(answers(kind), min_size=1, max_size=3))
    chosen = data.draw(st.sampled_from([kind, None]))
    results = [answer.result for answer in several]
    wholes = chat(chosen).whole(results)["choices"]
    for chunk in (chunks := chunks_of(chat(chosen), several, StreamPosition())):
        ChatCompletionChunk.model_validate(chunk)
    for whole in wholes:
        mine = [
            choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == whole["index"]
        ]
        assert "".join(one["delta"].get("content") or "" for one in mine) == whole["message"]["content"]
        items = [item for one in mine if one["logprobs"] for item in one["logprobs"]["content"]]
        assert items == (whole["logprobs"] or {"content": []})["content"]
    wholes = legacy(chosen).whole(results)["choices"]
    chunks = chunks_of(legacy(chosen), several, StreamPosition())
    for whole in wholes:
        mine = [
            choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == whole["index"]
        ]
        assert "".join(one["text"] for one in mine) == whole["text"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            items = [item for one in mine for item in (one["logprobs"] or {}).get(name, [])]
            assert items == (whole["logprobs"] or {}).get(name, [])


@pytest.mark.parametrize("kind", MAKERS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_reader_who_comes_back_gets_the_tokens_it_lacks(kind: str, data: st.DataObject) -> None:
    answer = data.draw(answers(kind))
    chunks = chunks_of(legacy(kind), [answer], StreamPosition())
    for at, chunk in enumerate(chunks):
        if chunk["frame"]:
            rest = chunks_of(legacy(kind), [answer], StreamPosition.parse(chunk["frame"]))
            assert rest == chunks[at + 1 :]


def test_without_a_vocabulary_nothing_is_said_of_bytes_and_offsets() -> None:
    answer = answer_of("byte-level", [], tokenizer_of("byte-level").encode("the mill").ids, (), [1])
    (choice,) = chat(None).whole([answer.result])["choices"]
    for item in choice["logprobs"]["content"]:
        assert item["bytes"] is None
        assert item["token"].startswith("token_id:")
        assert all(top["bytes"] is None for top in item["top_logprobs"])
    (choice,) = legacy(None).whole([answer.result])["choices"]
    assert "text_offset" not in choice["logprobs"]


def test_tokens_that_are_written_alike_keep_the_likeliest() -> None:
    vocabulary = vocabulary_of("byte-fallback")
    letter, byte = (tokenizer_of("byte-fallback").token_to_id(name) for name in ("a", "<0x61>"))
    assert vocabulary.token(letter).name == vocabulary.token(byte).name == "a"
    delta = Delta(0, 0, 1, [letter], "a", [(-0.5, [(letter, -0.5), (byte, -2.0)])])
    result = result_of("id", [delta], Done(1, 1, "stop", Usage()), Timings())
    (choice,) = legacy("byte-fallback").whole([result])["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"a": -0.5}]
