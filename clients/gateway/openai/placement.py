"""Placement of output tokens: the text offset and the bytes of each.

A worker sends tokens when they are sampled, and text once it is final: a character may lack its last token,
and a possible beginning of a stop string is held back. A token is placed when its text has arrived, so a
result and a stream of deltas, however split, give the same placement. Tokens whose text never arrives,
because a stop string truncated it, are not part of the output.
"""

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from ...protocol import Delta, TokenLogprobs
from .vocabulary import TokenText, Vocabulary

_REPLACEMENT: Final = "\ufffd"
_utf8: Final = getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class PlacedToken:
    """A token, its log-probability and the most likely alternatives.

    ``start`` is its offset in the text in code points, ``data`` its bytes in the text. Both
    are None without a vocabulary.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]
    start: int | None = None
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Decoding:
    """One possible decoding of some tokens; ``owners`` has the character index of each byte."""

    text: str
    pieces: list[bytes]
    """The bytes of each token."""
    owners: list[int]


class Placement:
    """Places the tokens of one output; ``take`` and ``end`` return newly placed tokens."""

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self._vocabulary = vocabulary
        self._waiting: deque[PlacedToken] = deque()
        self._text = ""
        """Text received from ``_start`` on, the offset of the first waiting token."""
        self._start = 0

    def take(self, delta: Delta) -> list[PlacedToken]:
        """Add the next tokens and text. Returns nothing where no log-probabilities were requested."""
        items: list[TokenLogprobs] = delta.logprobs or []
        new = [PlacedToken(token, own, top) for token, (own, top) in zip(delta.tokens, items, strict=False)]
        if self._vocabulary is None:
            return new
        if not new and not self._waiting:
            self._start, self._text = delta.pos + len(delta.text), ""
            return []
        self._waiting += new
        self._text += delta.text
        return list(self._placeable(self._vocabulary, ended=False))

    def end(self) -> list[PlacedToken]:
        """Place the rest: the output is complete."""
        return [] if self._vocabulary is None else list(self._placeable(self._vocabulary, ended=True))

    def _placeable(self, vocabulary: Vocabulary, *, ended: bool) -> Iterator[PlacedToken]:
        while self._waiting:
            group = _next_group(vocabulary, self._waiting, ended=ended)
            decoding = None if group is None else self._decoding(_decodings(vocabulary, group), ended=ended)
            if decoding is None:
                return
            yield from self._place(decoding)

    def _decoding(self, decodings: list[_Decoding], *, ended: bool) -> _Decoding | None:
        """The decoding that matches the text received; None while more text is needed."""
        cut: _Decoding | None = None
        for decoding in decodings:
            if self._text.startswith(decoding.text):
                return decoding
            if decoding.text.startswith(self._text):
                if not ended:
                    return None
                cut = cut or decoding
        if cut is None and not ended and len(self._text) < len(decodings[0].text):
            return None
        # Text that matches no decoding is assumed to have the length of the first.
        return cut or decodings[0]

    def _place(self, decoding: _Decoding) -> Iterator[PlacedToken]:
        size = min(len(decoding.text), len(self._text))
        kept = sum(owner < size for owner in decoding.owners)
        passed = 0
        for piece in decoding.pieces:
            begins = decoding.owners[passed] if passed < len(decoding.owners) else len(decoding.text)
            if size < len(decoding.text) and begins >= size:
                # Truncated by a stop string, with all that follows.
                self._waiting.clear()
                return
            data = piece[: max(kept - passed, 0)]
            yield replace(self._waiting.popleft(), start=self._start + begins, data=data)
            passed += len(piece)
        self._start += size
        self._text = self._text[size:]


def _next_group(
    vocabulary: Vocabulary, tokens: Iterable[PlacedToken], *, ended: bool
) -> list[TokenText] | None:
    """The first tokens, as few as possible, that end where a character does; None if more are needed."""
    group: list[TokenText] = []
    decoder = _utf8("replace")
    for item in tokens:
        token = vocabulary.token(item.token)
        if vocabulary.byte_fallback and group and token.data and not token.single:
            return group  # the run of bytes ended within a character
        group.append(token)
        decoder.decode(token.data)
        if not decoder.getstate()[0]:
            return group
    return group if ended else None


def _decodings(vocabulary: Vocabulary, group: list[TokenText]) -> list[_Decoding]:
    """The tokenizer's possible decodings of the tokens, the most likely first."""
    pieces = [token.data for token in group]
    decodings = [_decoded(pieces)]
    if vocabulary.byte_fallback and any(token.single for token in group):
        # First if the bytes are invalid UTF-8; else a neighbour in the run may have made them so.
        decodings.insert(0 if _REPLACEMENT in decodings[0].text else 1, _replaced(pieces))
    first = group[0].first
    if len(group) == 1 and pieces != [first]:
        decodings.append(_decoded([first]))
    return decodings


def _decoded(pieces: list[bytes]) -> _Decoding:
    decoder = _utf8("replace")
    text, owners = "", list[int]()
    for byte in b"".join(pieces):
        text += decoder.decode(bytes([byte]))
        within = bool(decoder.getstate()[0])
        owners.append(len(text) if within else len(text) - 1)
    return _Decoding(text + decoder.decode(b"", final=True), pieces, owners)


def _replaced(pieces: list[bytes]) -> _Decoding:
    """Byte fallback's decoding of invalid UTF-8: U+FFFD for each byte."""
    size = sum(map(len, pieces))
    return _Decoding(_REPLACEMENT * size, pieces, list(range(size)))
