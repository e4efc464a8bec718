"""Prompts, conversations and token ids: what is encoded, and what is refused and how."""

from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import BOS, VOCABULARY, tiny_tokenizer

from headrace.worker.model.errors import InvalidInputError
from headrace.worker.model.load.text import TextEncoder

TOKENIZER = tiny_tokenizer(chat_template=True)
LIMIT = 50


def encoder(*, chat_template: bool = True, max_tokens: int = LIMIT) -> TextEncoder:
    tokenizer = TOKENIZER if chat_template else tiny_tokenizer()
    return TextEncoder(tokenizer, model="mill", vocab_size=VOCABULARY, max_tokens=max_tokens)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_a_prompt_is_encoded_as_the_tokenizer_does_by_default(text: str) -> None:
    tokens = encoder(max_tokens=10_000).prompt(text)
    assert tokens == TOKENIZER(text).input_ids
    assert tokens[0] == BOS


def test_a_conversation_is_encoded_by_the_chat_template_with_one_bos() -> None:
    messages = [{"role": "user", "content": "hi"}]
    tokens = encoder().messages(messages)
    assert TOKENIZER.decode(tokens) == "<bos>[user] hi\n[assistant] "


def refused(call: object, *arguments: object) -> InvalidInputError:
    assert callable(call)
    with pytest.raises(InvalidInputError) as caught:
        call(*arguments)
    return caught.value


def test_no_chat_template() -> None:
    error = refused(encoder(chat_template=False).messages, [{"role": "user", "content": "hi"}])
    assert error.field == "messages"
    assert "model mill has no chat template" in str(error)


@pytest.mark.parametrize("absent", [{"content": None}, {}, {"content": "", "name": None, "tool_calls": None}])
@pytest.mark.parametrize(
    "body",
    [
        "[{{ m['role'] }}] {{ m['content'] }};",
        "{{ '[' + m['role'] + '] ' + m['content'] + ';' }}",
        "[{{ m.role }}] {% if 'name' in m %}{{ m.name + ': ' }}{% endif %}{{ m.content | trim }};",
        "[{{ m.role }}] {{ m.content }}{% for call in m.tool_calls if 'tool_calls' in m %}{% endfor %};",
    ],
)
def test_a_message_without_content_has_no_text(body: str, absent: dict[str, object]) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}" + body + "{% endfor %}"
    plain = TextEncoder(tokenizer, model="mill", vocab_size=VOCABULARY, max_tokens=LIMIT)
    tokens = plain.messages([{"role": "user", "content": "hi"}, {"role": "assistant", **absent}])
    assert TOKENIZER.decode(tokens) == "[user] hi;[assistant] ;"


def test_a_name_reaches_the_chat_template() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.name + ': ' + m.content }}{% endfor %}"
    named = TextEncoder(tokenizer, model="mill", vocab_size=VOCABULARY, max_tokens=LIMIT)
    assert TOKENIZER.decode(named.messages([{"role": "user", "name": "Mia", "content": "hi"}])) == "Mia: hi"


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": "mill " * LIMIT}]])
def test_conversations_of_no_length_or_too_long(messages: list[dict[str, str]]) -> None:
    assert refused(encoder().messages, messages).field == "messages"


def test_a_template_that_refuses_a_conversation() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    strict = TextEncoder(tokenizer, model="mill", vocab_size=VOCABULARY, max_tokens=LIMIT)
    error = refused(strict.messages, [{"role": "user", "content": "hi"}])
    assert "roles must alternate" in str(error)


def test_a_prompt_one_token_too_long_names_limit_and_length() -> None:
    letters = "q" * (LIMIT - 1)
    assert len(encoder().prompt(letters)) == LIMIT
    error = refused(encoder().prompt, letters + "q")
    assert str(error) == f"prompt: must be 1 to {LIMIT} tokens, got {LIMIT + 1}"


def test_megabytes_are_refused_by_their_length_alone() -> None:
    error = refused(encoder().prompt, "the wheel " * 1_000_000)
    assert error.field == "prompt"
    assert "characters" in str(error)


def test_a_lone_surrogate() -> None:
    assert "valid Unicode" in str(refused(encoder().prompt, "wheel \ud800"))


def test_token_ids() -> None:
    assert encoder().tokens([5, VOCABULARY - 1]) == [5, VOCABULARY - 1]
    error = refused(encoder().tokens, [1, 2, 3, VOCABULARY])
    assert str(error) == f"tokens.3: must be from 0 and below {VOCABULARY}, got {VOCABULARY}"
    assert refused(encoder().tokens, [-1]).field == "tokens.0"
    assert refused(encoder().tokens, []).field == "tokens"
    assert refused(encoder().tokens, [7] * (LIMIT + 1)).field == "tokens"


def test_an_added_token_that_the_model_has_no_embedding_for_is_refused_by_name() -> None:
    tokenizer = tiny_tokenizer(chat_template=True)
    tokenizer.add_tokens(["<image>"])
    beyond = TextEncoder(tokenizer, model="mill", vocab_size=VOCABULARY, max_tokens=LIMIT)
    in_prompt = refused(beyond.prompt, "a wheel <image>")
    in_messages = refused(beyond.messages, [{"role": "user", "content": "see <image>"}])
    assert (in_prompt.field, in_messages.field) == ("prompt", "messages")
    for error in (in_prompt, in_messages):
        assert f"'<image>', id {VOCABULARY}" in str(error)
    assert beyond.prompt("a wheel") == encoder().prompt("a wheel")


def test_output_of_an_earlier_claim_is_checked() -> None:
    assert encoder().output([1, 2]) == [1, 2]
    assert refused(encoder().output, [1, 2**40]).field == "output.1"
    assert refused(encoder().output, [-1]).field == "output.0"


class Panic(BaseException):
    """What a panic in the tokenizer library's Rust code is to Python: no Exception."""


def test_a_tokenizer_that_panics_refuses_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    panicking = encoder()
    monkeypatch.setattr(panicking, "_backend", Mock(encode=Mock(side_effect=Panic("index out of bounds"))))
    error = refused(panicking.prompt, "hello")
    assert error.field == "prompt"
    assert "cannot be tokenized" in str(error)
