"""Token ids to text as they come, and stop strings in that text.

A token is not a piece of text: a character may take several, and a leading space may belong to the word or
to the sentence. What might still change, or might be the beginning of a stop string, is held back.
"""

import re
import sys
from dataclasses import dataclass
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from .byte_fallback import ByteFallbackText

_CONTEXT = 6
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class _Text(Protocol):
    """Text of tokens as they are pushed; ``flush`` gives what was held back."""

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...


@dataclass(slots=True)
class Detokenizer:
    """One tokenizer's knowledge shared by all streams."""

    tokenizer: Tokenizer
    byte_tokens: dict[int, int]
    """Ids that stand for one byte each, and the byte; decoded in runs."""
    silent_tokens: frozenset[int]
    """Ids below ``num_tokens`` that have no text: special tokens, and those the tokenizer does not know."""
    anchor: int | None = None
    """A token with text of its own, for what is decoded as the middle of a text."""
    num_tokens: int = sys.maxsize
    """The tokenizer knows no id from here on, though the model may have some."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Detokenizer":
        """Look up which ids are byte-fallback tokens and which are special."""
        byte_tokens: dict[int, int] = {}
        anchor = None
        added = tokenizer.get_added_tokens_decoder()
        vocabulary = tokenizer.get_vocab()
        num_tokens = max(vocabulary.values(), default=-1) + 1
        silent = frozenset(token for token, description in added.items() if description.special)
        silent |= frozenset(range(num_tokens)).difference(vocabulary.values())
        if tokenizer.decoder is not None and b"ByteFallback" in tokenizer.decoder.__getstate__():
            for name, token in vocabulary.items():
                if found := _BYTE_TOKEN.fullmatch(name):
                    byte_tokens[token] = int(found[1], 16)
                elif token not in silent and len(name) == 1 and name.isascii() and name.isalpha():
                    anchor = token
        return cls(tokenizer, byte_tokens, silent, anchor, num_tokens)

    def decode(self, tokens: list[int]) -> str:
        """All of ``tokens`` at once, special tokens left out."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def stream(self, prompt: list[int], stop: tuple[str, ...] = ()) -> "TextStream":
        """Text that continues ``prompt``, until one of ``stop`` appears."""
        return TextStream(self, self._text(prompt), stop)

    def is_silent(self, token: int) -> bool:
        """Whether it has no text: a special token, or an id of the model that the tokenizer does not know."""
        return token >= self.num_tokens or token in self.silent_tokens

    def _text(self, prompt: list[int]) -> _Text:
        if self.byte_tokens:
            begun = not all(self.is_silent(token) for token in reversed(prompt))
            return ByteFallbackText(self.tokenizer, self.byte_tokens, anchor=self.anchor, begun=begun)
        context = prompt[-_CONTEXT:]
        if self.decode(context).endswith("\ufffd"):
            # The prompt ends within a character, which must not come back as part of the answer.
            context = []
        return _LibraryText(self, context)


class TextStream:
    """The text of one sequence's output, token by token.

    ``push`` and ``flush`` return text that is final. ``stopped`` tells that a stop string was found; the
    text ends before it, and later tokens add nothing.
    """

    def __init__(self, detokenizer: Detokenizer, text: _Text, stop: tuple[str, ...]) -> None:
        self.stopped = False
        self._detokenizer = detokenizer
        self._text = text
        self._stop = stop
        self._held = ""

    def push(self, token: int) -> str:
        """Take one more token; the text that is certain now, often but not always that token's."""
        if self.stopped or self._detokenizer.is_silent(token):
            return ""
        text = self._text.push(token)
        return self._release(text) if text and self._stop else text

    def flush(self) -> str:
        """The output has ended: what was held back, incomplete characters as U+FFFD."""
        if self.stopped:
            return ""
        text = self._release(self._text.flush())
        if self.stopped:
            return text
        text, self._held = text + self._held, ""
        return text

    def _release(self, text: str) -> str:
        if not self._stop:
            return text
        held = self._held + text
        found = min((at for stop in self._stop if (at := held.find(stop)) >= 0), default=-1)
        if found >= 0:
            self.stopped = True
            self._held = ""
            return held[:found]
        keep = max(_beginning_at_end(held, stop) for stop in self._stop)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]


class _LibraryText:
    """By the tokenizer library's stream decoder."""

    def __init__(self, detokenizer: Detokenizer, context: list[int]) -> None:
        self._detokenizer = detokenizer
        self._decoder = DecodeStream(context, skip_special_tokens=True)
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        self._pending.append(token)
        try:
            text = self._decoder.step(self._detokenizer.tokenizer, token)
        except Exception:  # the library has no narrower one: what it decoded so far does not continue
            text = self._detokenizer.decode(self._pending)
            self._decoder = DecodeStream([], skip_special_tokens=True)
        if text is None:
            return ""
        self._pending.clear()
        return text

    def flush(self) -> str:
        pending, self._pending = self._pending, []
        return self._detokenizer.decode(pending) if pending else ""


def _beginning_at_end(text: str, stop: str) -> int:
    """Length of the longest proper beginning of ``stop`` that ``text`` ends with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
