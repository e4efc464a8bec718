"""Stream position, used as event id: the tokens and characters received up to an event.

Both are needed: an event can carry text that was held back, and no token.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

from ...protocol import Event
from ...protocol.events import Done
from ..errors import invalid

_ID: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(\.end)?\Z")


@dataclass(slots=True)
class StreamPosition:
    """``tokens`` and ``characters`` (code points) received; ``ended`` once ``done`` was."""

    tokens: int = 0
    characters: int = 0
    ended: bool = False

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Parse an event id; without one, the beginning of the stream.

        Raises:
            ApiError: 400, it is not an event id.
        """
        if not text:
            return cls()
        match = _ID.match(text)
        if match is None:
            raise invalid("after: must be the id of an event, TOKENS.CHARACTERS", "after")
        return cls(int(match[1]), int(match[2]), match[3] is not None)

    def advance(self, event: Event) -> None:
        if isinstance(event, Done):
            self.ended = True
        else:
            self.tokens, self.characters = event.seq + len(event.tokens), event.pos + len(event.text)

    def __str__(self) -> str:
        return f"{self.tokens}.{self.characters}" + (".end" if self.ended else "")
