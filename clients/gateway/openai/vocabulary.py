"""Names and bytes of a model's tokens, for log-probabilities.

Workers send token ids. Names and bytes need the model's ``tokenizer.json``; without it tokens are named
``token_id:N`` and have no bytes.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CACHED: Final = 1 << 16
_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ANCHOR: Final = "a"
"""Decoded before a token, so that the token is not the first: decoders strip a leading space."""


@dataclass(frozen=True, slots=True)
class TokenText:
    """One token. ``name`` is its text; ``bytes:\\xe1`` where it is only part of a character.

    ``data`` is its bytes within a text, ``first`` its bytes at the beginning of one; empty for special
    tokens, which outputs omit. ``single`` marks the tokens of byte fallback.
    """

    name: str
    data: bytes
    first: bytes
    single: bool = False


class Vocabulary:
    """The tokens of one model, by the rules of its tokenizer's decoder."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        self._decoder = tokenizer.decoder
        kinds = set(_kinds(json.loads(self._decoder.__getstate__()))) if self._decoder is not None else set()
        self._byte_level = "ByteLevel" in kinds
        self.byte_fallback = "ByteFallback" in kinds
        """Runs of byte tokens that are invalid UTF-8 decode to one U+FFFD for each byte."""
        added = tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token for token, description in added.items() if description.special)
        self.token = lru_cache(_CACHED)(self._token)
        """A token id's text. An id that the vocabulary lacks has no bytes, as in the tokenizer's decoding."""

    def _token(self, token: int) -> TokenText:
        spelled = self._tokenizer.id_to_token(token)
        if spelled is None:
            return TokenText(_by_id(token), b"", b"")
        if token in self._special:
            return TokenText(spelled, b"", b"")
        if self._byte_level:
            letters = _byte_letters()
            # The decoder outputs a token with other letters as spelled.
            known = all(letter in letters for letter in spelled)
            data = bytes(letters[letter] for letter in spelled) if known else spelled.encode()
            return TokenText(_name(data, spelled), data, data)
        if self.byte_fallback and (byte := _BYTE.fullmatch(spelled)):
            data = bytes.fromhex(byte[1])
            return TokenText(
                _name(data, spelled), data, self._decoded(spelled) if data < b"\x80" else data, True
            )
        text = self._decoded(_ANCHOR, spelled)
        anchor = self._decoded(_ANCHOR)
        first = self._decoded(spelled)
        data = text.removeprefix(anchor) if text.startswith(anchor) else first
        return TokenText(_name(data, spelled), data, first)

    def _decoded(self, *spelled: str) -> bytes:
        return (" ".join(spelled) if self._decoder is None else self._decoder.decode(list(spelled))).encode()


def name_of(vocabulary: Vocabulary | None, token: int) -> str:
    return _by_id(token) if vocabulary is None else vocabulary.token(token).name


def load_vocabularies(files: Mapping[str, Path]) -> dict[str, Vocabulary]:
    """The vocabulary of each model whose ``tokenizer.json`` is given.

    Raises:
        ImportError: the package ``tokenizers`` is not installed.
        ValueError: a file is not a tokenizer.
    """
    return {model: _load(path) for model, path in files.items()}


def _load(path: Path) -> Vocabulary:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(f"{path}: not a tokenizer.json: {error}") from None
    return Vocabulary(tokenizer)


def _kinds(decoder: Mapping[str, Any]) -> Iterator[str]:
    yield decoder["type"]
    for inner in decoder.get("decoders", ()):
        yield from _kinds(inner)


@cache
def _byte_letters() -> dict[str, int]:
    """Byte by letter in the spelling of byte-level tokenizers, as the library's pre-tokenizer writes it."""
    from tokenizers.pre_tokenizers import ByteLevel

    # Together these contain every byte of valid UTF-8.
    points = [*range(0x800), 0x800, *range(0x1000, 0x10000, 0x1000), *range(0x10000, 0x110000, 0x10000)]
    text = "".join(map(chr, points))
    written = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    table = dict(zip("".join(piece for piece, _ in written), text.encode(), strict=True))
    # The others are letters of Latin-1, which stand for themselves.
    return table | {letter: ord(letter) for letter in ByteLevel.alphabet() if letter not in table}


def _name(data: bytes, spelled: str) -> str:
    try:
        return data.decode() or spelled
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _by_id(token: int) -> str:
    return f"token_id:{token}"
