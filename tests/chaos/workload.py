"""The requests of a run, each with the output that an uninterrupted run would give."""

import random
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from simulated_model import MODEL, POISON, Uninterrupted, text_of, uninterrupted

from headrace.clients.protocol import Request, make_request

Interruption = Literal["none", "cancel", "deadline", "poison", "refused"]
Subscriber = Literal["steady", "late", "reconnecting"]

_LETTERS = "abcdefgh "
_PREFIXES = ["a cab fed a hag ", "had a bad decade he faced a beach "]
"""Shared beginnings, so that sequences share cache blocks."""


@dataclass
class Job:
    """One request, who follows it, and what interrupts it."""

    request: Request
    interruption: Interruption
    subscribers: list[Subscriber]
    cancel_after: int | None = None
    """Tokens that the first subscriber has when it cancels; 0 for at once."""
    bare: bool = False
    """Enqueued by XADD alone, as from any language."""
    resubmitted: int = 0
    submitted_at: list[float] = field(default_factory=list[float])

    @cached_property
    def expected(self) -> Uninterrupted:
        return uninterrupted(self.request)

    @cached_property
    def uncut_text(self) -> str:
        """The text of all tokens, stop strings included."""
        return text_of(self.expected.tokens, [])

    @property
    def deadly_at(self) -> int:
        """Output tokens after which a poison request kills its worker."""
        return int((self.request.prompt or "").removeprefix(POISON).split()[0])


def make_job(dice: random.Random, run: str, number: int, now_ms: int, *, poison: float) -> Job:
    """A random job. ``poison`` is the share of requests that kill their worker."""
    kind: Interruption = dice.choices(
        ["none", "cancel", "deadline", "poison", "refused"], [0.76, 0.12, 0.09, poison, 0.03]
    )[0]
    prompt = dice.choice([*_PREFIXES, ""]) + "".join(dice.choices(_LETTERS, k=dice.randint(1, 60)))
    fields: dict[str, Any] = {
        "id": f"{run}-{number}",
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": dice.choice([1, 5, 30, 60, 100, 150]),
        "temperature": dice.choice([0.0, 0.0, 0.8]),
        "seed": dice.choice([None, dice.randrange(1 << 40)]),
        "stop": dice.choice([[], [], ["abc"], ["é!", "bad", "??a"]]),
        "stop_tokens": dice.choice([[], [], [], [1]]),
        "logprobs": dice.choice([None, None, 0, 3]),
        "priority": dice.choice(["high", "normal", "normal", "low"]),
        "tenant": dice.choice([None, "acorn", "beech", "cedar"]),
        "metadata": dice.choice([None, {"number": number}]),
    }
    cancel_after = None
    if kind == "cancel":
        cancel_after = dice.choice([0, 1, 10, 40])
    elif kind == "deadline":
        fields["deadline"] = now_ms + dice.choice([0, 300, 1000, 3000])
    elif kind == "poison":
        fields["prompt"] = f"{POISON}{dice.choice([0, 0, 7])} {prompt}"
        fields |= {"max_tokens": 100, "stop": [], "stop_tokens": []}
    elif kind == "refused":
        fields |= {"prompt": None, "messages": [{"role": "user", "content": prompt}]}
    return Job(
        make_request(**fields),
        kind,
        dice.choices(["steady", "late", "reconnecting"], k=dice.choice([1, 1, 2])),
        cancel_after,
        bare=kind == "none" and dice.random() < 0.15,
    )
