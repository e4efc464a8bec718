"""Who goes before whom, in the queue and in the batch: by priority, and by the time since submission."""

from dataclasses import dataclass
from typing import Final

PRIORITY_CLASSES: Final = 3


@dataclass(frozen=True, slots=True)
class Ageing:
    """A request rises by one priority for each ``ms`` milliseconds since its submission.

    So nothing has to be sorted again as time goes by: its order is a constant, the moment at which it counts
    as much as a high request that arrives then. That is its virtual arrival, and the earlier one goes first.
    The queue, which takes turns between tenants among equals, goes by the class: the ageing times that are
    left until then, rounded up.
    """

    ms: int = 30_000

    @classmethod
    def of(cls, seconds: float) -> "Ageing":
        return cls(max(1, round(seconds * 1000)))

    def virtual_arrival(self, priority: int, arrival_ms: int) -> int:
        """``priority`` is 0 to 2, 0 being the highest; both times are of Redis's clock, in milliseconds."""
        return arrival_ms + self.delays[priority]

    def class_at(self, virtual_arrival: int, now: int) -> int:
        """The priority, 0 to 2, that has been reached ``now``."""
        return max(0, -((now - virtual_arrival) // self.ms))

    @property
    def delays(self) -> tuple[int, ...]:
        """Of each priority, how much later than it has arrived a request counts as arrived."""
        return tuple(priority * self.ms for priority in range(PRIORITY_CLASSES))
