"""Token ids to text as they come, and stop strings in that text.

A token is not a piece of text: a character may take several, and a leading space may belong to the word or
to the sentence. The tokenizer library's own stream decoder knows; here it is fed, and what might still
change, or might be the beginning of a stop string, is held back.
"""

from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_CONTEXT = 6
_LONGEST_BYTE_RUN = 32


@dataclass(slots=True)
class Detokenizer:
    """One tokenizer's knowledge shared by all streams."""

    tokenizer: Tokenizer
    byte_tokens: frozenset[int]
    """Ids that stand for one byte each and are decoded in runs; a run's text is known when it ends."""
    silent_tokens: frozenset[int]
    """Special tokens, which have no text."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Detokenizer":
        """Look up which ids are byte-fallback tokens and which are special."""
        ids: set[int] = set()
        if tokenizer.decoder is not None and b"ByteFallback" in tokenizer.decoder.__getstate__():
            for byte in range(256):
                token = tokenizer.token_to_id(f"<0x{byte:02X}>")
                if token is not None:
                    ids.add(token)
        added = tokenizer.get_added_tokens_decoder()
        silent = frozenset(token for token, description in added.items() if description.special)
        return cls(tokenizer, frozenset(ids), silent)

    def decode(self, tokens: list[int]) -> str:
        """All of ``tokens`` at once, special tokens left out."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def stream(self, prompt: list[int], stop: tuple[str, ...] = ()) -> "TextStream":
        """Text that continues ``prompt``, until one of ``stop`` appears."""
        context = [token for token in prompt[-_CONTEXT:] if token not in self.byte_tokens]
        if self.decode(context).endswith("\ufffd"):
            # The prompt ends within a character, which must not come back as part of the answer.
            context = []
        return TextStream(self, context, stop)


class TextStream:
    """The text of one sequence's output, token by token.

    ``push`` and ``flush`` return text that is final. ``stopped`` tells that a stop string was found; the
    text ends before it, and later tokens add nothing.
    """

    def __init__(self, detokenizer: Detokenizer, context: list[int], stop: tuple[str, ...]) -> None:
        self.stopped = False
        self._detokenizer = detokenizer
        self._stop = stop
        self._held = ""
        self._decoder = DecodeStream(context, skip_special_tokens=True)
        self._byte_run: list[int] = []
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """Take one more token; the text that is certain now, often but not always that token's."""
        if self.stopped or token in self._detokenizer.silent_tokens:
            return ""
        if token in self._detokenizer.byte_tokens:
            self._byte_run.append(token)
            return self._release(self._end_byte_run()) if len(self._byte_run) >= _LONGEST_BYTE_RUN else ""
        text = self._decode(token)
        if self._byte_run:
            text = self._end_byte_run() + text
        return self._release(text) if text and self._stop else text

    def flush(self) -> str:
        """The output has ended: what was held back, incomplete characters as U+FFFD."""
        if self.stopped:
            return ""
        text = self._end_byte_run()
        if self._pending:
            text += self._detokenizer.decode(self._pending)
            self._pending = []
        text = self._release(text)
        if self.stopped:
            return text
        text, self._held = text + self._held, ""
        return text

    def _decode(self, token: int) -> str:
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

    def _end_byte_run(self) -> str:
        if not self._byte_run:
            return ""
        run, self._byte_run = self._byte_run, []
        return self._detokenizer.decode(run)

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


def _beginning_at_end(text: str, stop: str) -> int:
    """Length of the longest proper beginning of ``stop`` that ``text`` ends with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
