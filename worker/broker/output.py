"""One request's output as its worker knows it, and how much of it Redis has confirmed.

All of this epoch's output is kept until the request ends: a server that restarts may come back with less of
the log than it had confirmed, and then needs the rest again.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from io import StringIO

from ...clients.protocol import Delta, TokenLogprobs
from .results import NewTokens, Result


class Output:
    """Starts after ``tokens`` output tokens and ``characters`` of text of earlier epochs."""

    def __init__(self, tokens: int = 0, characters: int = 0) -> None:
        self.logged = tokens
        """Output tokens that the log has, as far as Redis has said."""
        self.ending: Result | None = None
        self._first = tokens
        self._first_character = characters
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] | None = None
        self._text = StringIO()
        self._characters = characters
        # An event may begin where an earlier one could have ended: token counts, and characters there.
        self._cuts = array("Q", [tokens])
        self._cut_characters = array("Q", [characters])

    @property
    def known(self) -> int:
        """Output tokens so far, those of earlier epochs included."""
        return self._first + len(self._tokens)

    @property
    def unlogged_bytes(self) -> int:
        """About how much memory and traffic the unconfirmed part stands for."""
        if self.ending is not None:
            return 8 * len(self.ending.tokens) + len(self.ending.text) + 100
        count = self.known - self.logged
        per_token = 100 if self._logprobs is not None else 8
        return count * per_token + self._characters - self._characters_at(self.logged) if count else 0

    def append(self, new: NewTokens) -> None:
        """Add an engine's delta.

        Raises:
            ValueError: it does not continue what is known.
        """
        repeated = self.known - new.seq
        if not 0 <= repeated <= len(new.tokens) or new.pos != self._characters:
            where = f"token {self.known}, character {self._characters}"
            raise ValueError(f"delta: must continue at {where}, got token {new.seq}, character {new.pos}")
        self._text.write(new.text)
        self._characters += len(new.text)
        if repeated == len(new.tokens):
            return
        self._tokens += new.tokens[repeated:]
        if new.logprobs is not None:
            if self._logprobs is None:
                self._logprobs = []
            self._logprobs += new.logprobs[repeated:]
        self._cuts.append(self.known)
        self._cut_characters.append(self._characters)

    def confirm(self, logged: int) -> bool:
        """Take Redis's word for how many tokens the log has; False when that cannot be this log."""
        at = bisect_left(self._cuts, logged)
        if at == len(self._cuts) or self._cuts[at] != logged:
            return False
        self.logged = logged
        return True

    def next_event(self, epoch: int) -> Delta | None:
        """Everything unlogged as one event; None when there is nothing."""
        if self.known == self.logged:
            return None
        start = self.logged - self._first
        position = self._characters_at(self.logged)
        self._text.seek(position - self._first_character)
        text = self._text.read()
        return Delta(
            seq=self.logged,
            pos=position,
            epoch=epoch,
            tokens=self._tokens[start:],
            text=text,
            logprobs=None if self._logprobs is None else self._logprobs[start:],
        )

    def whole(self, epoch: int) -> Delta | None:
        """The ended request's output as one event; None without any."""
        return self._of_ending(epoch, 0, 0)

    def rest(self, epoch: int) -> Delta | None:
        """What the ended request's log lacks; None when nothing."""
        ending = _required(self.ending)
        position = self._characters_at(self.logged)
        if self.logged >= len(ending.tokens) and position >= len(ending.text):
            return None
        # Text alone has no event of its own: the last token goes along once more.
        return self._of_ending(epoch, min(self.logged, len(ending.tokens) - 1), position)

    def _of_ending(self, epoch: int, seq: int, pos: int) -> Delta | None:
        ending = _required(self.ending)
        if not ending.tokens:
            return None
        logprobs: Sequence[TokenLogprobs] | None = ending.logprobs
        return Delta(
            seq=seq,
            pos=pos,
            epoch=epoch,
            tokens=list(ending.tokens[seq:]),
            text=ending.text[pos:],
            logprobs=None if logprobs is None else list(logprobs[seq:]),
        )

    def _characters_at(self, tokens: int) -> int:
        return self._cut_characters[bisect_left(self._cuts, tokens)]


def _required(ending: Result | None) -> Result:
    if ending is None:
        raise ValueError("the request has not ended")
    return ending
