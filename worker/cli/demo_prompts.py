"""What the demonstration asks: a base model continues text. Lengths differ, and two share their beginning."""

from dataclasses import dataclass
from typing import Final

_NOTICE: Final = (
    "Notice to all who use the mill road. The headrace will be drained on Monday for repairs to the sluice "
    "gate and the timber of the channel. While the water is low the wheel stands still, so no grain will be "
    "ground before Thursday. Carts that bring grain are asked to wait at the upper gate, where the miller's "
    "boy writes down each name in the order of arrival. Nobody loses a place who leaves for dinner. "
)


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """One request of the demonstration."""

    name: str
    prompt: str
    max_tokens: int
    arrives: float
    """Seconds after the first."""


PROMPTS: Final = (
    DemoPrompt("A", "The water wheel is one of the oldest machines. It", 40, 0.0),
    DemoPrompt("B", "A short history of bread:", 36, 0.4),
    DemoPrompt("C", _NOTICE + "Question: When will grain be ground again? Answer:", 16, 0.8),
    DemoPrompt("D", "The capital of France is Paris. The capital of Italy is", 24, 1.2),
    DemoPrompt("E", "def fibonacci(n):\n    ", 40, 1.6),
    DemoPrompt("F", _NOTICE + "Question: Where do the carts wait? Answer:", 16, 2.2),
    DemoPrompt("G", "Es war einmal ein Müller, der", 32, 2.6),
    DemoPrompt("H", "Three things every engineer should know about queues:\n1.", 40, 3.0),
)
