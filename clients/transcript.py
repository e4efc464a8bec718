"""How much of a request a subscriber has, and what an event adds to it.

Events of one request reach a subscriber late, twice, out of order, from several attempts, or as one that
stands for many (a finished request's log is rewritten). All of that is one case: every event says where its
tokens and its text begin, so what lies beyond the subscriber's own counts is new, and the rest is not.
"""

from dataclasses import dataclass

from .protocol import Delta, Done, Event


@dataclass(slots=True)
class Transcript:
    """The counts of one subscriber: output ``tokens``, and ``characters`` (code points) of text.

    Start with other counts than zero to go on where an earlier subscriber stopped.
    """

    tokens: int = 0
    characters: int = 0
    done: bool = False

    def lacks_before(self, event: Event) -> bool:
        """Whether something between what the subscriber has and this event is missing: a gap."""
        if isinstance(event, Done):
            return event.seq > self.tokens
        return event.seq > self.tokens or event.pos > self.characters

    def take(self, event: Event) -> Event | None:
        """The part of ``event`` that is new, None if nothing is.

        Raises:
            ValueError: something before the event is missing; see ``lacks_before``.

        Tokens and text advance independently: text that was held back (it might have become a stop string)
        comes later, in an event whose tokens the subscriber already has.
        """
        if self.done:
            return None
        if self.lacks_before(event):
            raise ValueError(f"the event begins past token {self.tokens} or character {self.characters}")
        if isinstance(event, Done):
            self.done = True
            return event
        known = self.tokens - event.seq
        tokens = event.tokens[known:]
        text = event.text[self.characters - event.pos :]
        if not tokens and not text:
            return None
        piece = Delta(
            seq=self.tokens,
            pos=self.characters,
            epoch=event.epoch,
            tokens=tokens,
            text=text,
            logprobs=None if event.logprobs is None else event.logprobs[known:],
        )
        self.tokens += len(tokens)
        self.characters += len(text)
        return piece
