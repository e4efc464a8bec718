"""Contact with Redis as renewals show it: only time in which leases could be renewed counts against them."""

from .settings import milliseconds


class Contact:
    """What this worker's own renewals tell about everybody's, by Redis's clock, in milliseconds.

    A renewal comes every third of a lease. Where two are further apart than half a lease, others may have
    been held up as well: their leases are left alone for another half, so that they can renew first.
    """

    def __init__(self, lease: float) -> None:
        self._longest_gap = milliseconds(lease) / 2
        self.renewed: int | None = None
        """The last renewal; None before the first."""
        self.since = 0
        """Renewals have come without a gap since then; 0 where none is known of."""
        self.outage = 0
        """The end of the last gap that came of Redis, not of this worker; 0 without one."""

    def note(self, now: int, *, hindered: bool) -> bool:
        """A renewal has succeeded, which Redis had ``hindered`` (not this process by standing still).

        Says if it ends a gap or is the first.
        """
        first = self.renewed is None
        gap = hindered if self.renewed is None else not 0 <= now - self.renewed <= self._longest_gap
        self.renewed = now
        if gap:
            self.since = now
            if hindered:
                self.outage = now
        return first or gap
