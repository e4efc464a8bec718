"""Text encoder: a request's prompt, messages or tokens to token ids, in any thread but the engine's."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast

from ..errors import InvalidInputError

_LONGEST_REASON = 300


class TextEncoder:
    """Encodes what requests bring, and refuses what the model cannot take.

    ``vocab_size`` is the number of rows of the embedding table. Each method returns token ids, 1 to
    ``max_tokens`` of a prompt, and raises InvalidInputError naming field and limit.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, *, model: str, vocab_size: int, max_tokens: int
    ) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._vocab_size = vocab_size
        self._max_tokens = max_tokens
        # The wrapper around it sets truncation anew on each call, which threads must not do to one another.
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        # Beyond this, no text fits: the answer to megabytes of prompt need not wait for their encoding.
        longest = max(len(token) for token in self._backend.get_vocab())
        self._max_characters = max_tokens * longest

    def prompt(self, text: str) -> list[int]:
        """Encode a prompt as the tokenizer does by default, with BOS where the model has one."""
        return self._encode("prompt", text, add_special_tokens=True)

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Encode a conversation by the model's chat template, up to where the assistant's turn begins."""
        if self._tokenizer.chat_template is None:
            raise InvalidInputError("messages", f"model {self._model} has no chat template; send a prompt")
        if not messages:
            raise InvalidInputError("messages", "must be at least 1, got 0")
        try:
            text = self._tokenizer.apply_chat_template(
                [_plain(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is the model's own program and may raise anything
            reason = str(error)[:_LONGEST_REASON]
            raise InvalidInputError("messages", f"refused by the model's chat template: {reason}") from error
        if not isinstance(text, str):
            raise InvalidInputError("messages", "the model's chat template made no text of them")
        return self._encode("messages", text, add_special_tokens=False)

    def tokens(self, tokens: Sequence[int]) -> list[int]:
        """Check token ids that were encoded elsewhere."""
        self._check_length("tokens", len(tokens))
        self._check_ids("tokens", tokens)
        return list(tokens)

    def output(self, tokens: Sequence[int]) -> list[int]:
        """Check output tokens of an earlier claim, perhaps of a worker with another model."""
        self._check_ids("output", tokens)
        return list(tokens)

    def _encode(self, field: str, text: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) > self._max_characters:
            limit = f"{self._max_characters} characters, the most that {self._max_tokens} tokens could hold"
            raise InvalidInputError(field, f"must be at most {limit}, got {len(text)}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInputError(
                field, f"must be valid Unicode, got a lone surrogate at {error.start}"
            ) from None
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except BaseException as error:  # a panic of the library's Rust code is no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise InvalidInputError(field, f"cannot be tokenized: {type(error).__name__}: {error}") from error
        self._check_length(field, len(ids))
        # A tokenizer may have added tokens that the model has no embedding for.
        if max(ids) >= self._vocab_size:
            token = max(ids)
            name = repr(self._backend.id_to_token(token))
            problem = f"has the token {name}, id {token}, which the model lacks: its ids are below"
            raise InvalidInputError(field, f"{problem} {self._vocab_size}")
        return ids

    def _check_ids(self, field: str, tokens: Sequence[int]) -> None:
        for index, token in enumerate(tokens):
            if not 0 <= token < self._vocab_size:
                limit = f"must be from 0 and below {self._vocab_size}, got {token}"
                raise InvalidInputError(f"{field}.{index}", limit)

    def _check_length(self, field: str, length: int) -> None:
        if not 1 <= length <= self._max_tokens:
            raise InvalidInputError(field, f"must be 1 to {self._max_tokens} tokens, got {length}")


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message as any template takes it: null or missing content is no text, other nulls are not there.

    Templates join strings; some say "None" of a null, and others fail.
    """
    return {"content": "", **{name: value for name, value in message.items() if value is not None}}
