"""Where the tokens of an answer stand in its text, and which of its bytes they are.

A worker sends tokens when the model makes them, and text once it is certain: a character may lack its last
token, and what may become a stop string is held back. A token is placed here when the text that it stands for
has come, so whether an answer is read as a whole or as it is made, in whatever pieces, its tokens are placed
alike. Tokens whose text does not come, because a stop string cut it off, are not part of the answer.
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
    """A token, its log-probability and the likeliest ones.

    ``start`` is the character (code point) of the text where it begins, ``data`` its bytes in the text. Both
    are None without a vocabulary.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]
    start: int | None = None
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Reading:
    """What some tokens may be in the text: for each of their bytes, the character that it belongs to."""

    text: str
    pieces: list[bytes]
    """Of each token."""
    owners: list[int]


class Placement:
    """Places the tokens of one answer; ``take`` and ``end`` return those that were placed."""

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self._vocabulary = vocabulary
        self._waiting: deque[PlacedToken] = deque()
        self._text = ""
        """What has come of the text from ``_start`` on, where the first waiting token belongs."""
        self._start = 0

    def take(self, delta: Delta) -> list[PlacedToken]:
        """The answer's next tokens and text. Nothing where no log-probabilities were asked for."""
        items: list[TokenLogprobs] = delta.logprobs or []
        new = [PlacedToken(token, own, top) for token, (own, top) in zip(delta.tokens, items, strict=False)]
        if self._vocabulary is None:
            return new
        if not new and not self._waiting:
            self._start, self._text = delta.pos + len(delta.text), ""
            return []
        self._waiting += new
        self._text += delta.text
        return list(self._settled(self._vocabulary, ended=False))

    def end(self) -> list[PlacedToken]:
        """No more text will come."""
        return [] if self._vocabulary is None else list(self._settled(self._vocabulary, ended=True))

    def _settled(self, vocabulary: Vocabulary, *, ended: bool) -> Iterator[PlacedToken]:
        while self._waiting:
            group = _next_group(vocabulary, self._waiting, ended=ended)
            reading = None if group is None else self._reading(_readings(vocabulary, group), ended=ended)
            if reading is None:
                return
            yield from self._place(reading)

    def _reading(self, readings: list[_Reading], *, ended: bool) -> _Reading | None:
        """The one that the text has here; None while that cannot be told."""
        cut: _Reading | None = None
        for reading in readings:
            if self._text.startswith(reading.text):
                return reading
            if reading.text.startswith(self._text):
                if not ended:
                    return None
                cut = cut or reading
        if cut is None and not ended and len(self._text) < len(readings[0].text):
            return None
        # A text that no reading explains is taken to have the room of the first.
        return cut or readings[0]

    def _place(self, reading: _Reading) -> Iterator[PlacedToken]:
        size = min(len(reading.text), len(self._text))
        kept = sum(owner < size for owner in reading.owners)
        passed = 0
        for piece in reading.pieces:
            begins = reading.owners[passed] if passed < len(reading.owners) else len(reading.text)
            if size < len(reading.text) and begins >= size:
                # Cut off by a stop string, and so is all that follows.
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


def _readings(vocabulary: Vocabulary, group: list[TokenText]) -> list[_Reading]:
    """What the tokenizer may have made of the tokens, the likeliest first."""
    pieces = [token.data for token in group]
    readings = [_decoded(pieces)]
    if vocabulary.byte_fallback and any(token.single for token in group):
        # In place of text that is no text already; else a neighbour in the run may have spoiled it.
        readings.insert(0 if _REPLACEMENT in readings[0].text else 1, _replaced(pieces))
    first = group[0].first
    if len(group) == 1 and pieces != [first]:
        readings.append(_decoded([first]))
    return readings


def _decoded(pieces: list[bytes]) -> _Reading:
    decoder = _utf8("replace")
    text, owners = "", list[int]()
    for byte in b"".join(pieces):
        text += decoder.decode(bytes([byte]))
        within = bool(decoder.getstate()[0])
        owners.append(len(text) if within else len(text) - 1)
    return _Reading(text + decoder.decode(b"", final=True), pieces, owners)


def _replaced(pieces: list[bytes]) -> _Reading:
    """Byte fallback's reading of a run that is no UTF-8: a replacement for each of its bytes."""
    size = sum(map(len, pieces))
    return _Reading(_REPLACEMENT * size, pieces, list(range(size)))
