"""Text of vocabularies that spell what they lack in bytes, a token for each, as Llama's and Gemma's do.

The library decodes a run of byte tokens as a whole: to its characters if all of it is UTF-8, else to one
U+FFFD for each byte, whatever stands beside the wrong one. Every other token has a text of its own, except
that some decoders strip the beginning of a text.
"""

from collections.abc import Mapping

from tokenizers import Tokenizer

_LONGEST_HELD = 32
"""Bytes of a run that wait for its end. A longer one's characters are given out as they become complete."""


class ByteFallbackText:
    """Text of the tokens pushed, equal to what the library makes of all of them at once.

    It differs where a run longer than is held back has bytes that are no UTF-8: the characters before them
    have been given out and stay.
    """

    def __init__(
        self, tokenizer: Tokenizer, byte_tokens: Mapping[int, int], *, anchor: int | None, begun: bool
    ) -> None:
        """``anchor`` is any token with text of its own; ``begun`` says that text came before."""
        self._tokenizer = tokenizer
        self._byte_tokens = byte_tokens
        # What is decoded after the anchor is decoded as the middle of a text.
        self._anchor = [] if anchor is None else [anchor]
        self._skip = len(self._decode_all(self._anchor))
        self._begun = begun
        self._run: list[int] = []
        """Byte tokens whose text has not been given out."""
        self._bytes = bytearray()
        self._run_length = 0
        self._spoiled = False

    def push(self, token: int) -> str:
        """Take one more token that is not a special one; the text that is certain now."""
        byte = self._byte_tokens.get(token)
        if byte is None:
            return self._end_run() + self._decode([token])
        if self._spoiled:
            return "\ufffd"
        self._run.append(token)
        self._bytes.append(byte)
        self._run_length += 1
        complete = _complete(self._bytes)
        if complete is None:
            self._spoiled = True
            return self._end_of_held()
        return self._take(complete) if self._run_length >= _LONGEST_HELD else ""

    def flush(self) -> str:
        """The output has ended: what was held back."""
        return self._end_run()

    def _end_run(self) -> str:
        text = self._end_of_held()
        self._run_length = 0
        self._spoiled = False
        return text

    def _end_of_held(self) -> str:
        if _complete(self._bytes) == len(self._bytes):
            return self._take(len(self._bytes))
        text = "\ufffd" * len(self._run)
        self._begun = True
        self._run.clear()
        self._bytes.clear()
        return text

    def _take(self, count: int) -> str:
        if not count:
            return ""
        text = self._decode(self._run[:count])
        del self._run[:count]
        del self._bytes[:count]
        return text

    def _decode(self, tokens: list[int]) -> str:
        if self._begun:
            return self._decode_all(self._anchor + tokens)[self._skip :]
        self._begun = True
        return self._decode_all(tokens)

    def _decode_all(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)


def _complete(data: bytearray) -> int | None:
    """How many leading bytes are whole characters; None if what follows them can never be one."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start if error.reason == "unexpected end of data" else None
    return len(data)
