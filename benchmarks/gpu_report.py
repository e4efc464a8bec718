"""What a check found, as a line of a table and as JSON."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["ok", "MISSED", "FAILED", ""]
"""A target reached or missed; a check that could not be made; nothing to reach."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement; ``ratio`` is to what ``reference`` says, ``target`` its limit, such as ``>= 0.85``."""

    case: str
    measured: str
    reference: str = ""
    ratio: float | None = None
    target: str = ""

    @property
    def verdict(self) -> Verdict:
        if self.measured.startswith("failed"):
            return "FAILED"
        if not self.target or self.ratio is None:
            return ""
        relation, limit = self.target.split()
        reached = self.ratio >= float(limit) if relation == ">=" else self.ratio <= float(limit)
        return "ok" if reached else "MISSED"

    def to_json(self, part: str) -> dict[str, Any]:
        return {"part": part, **asdict(self), "verdict": self.verdict}


def failure(case: str, reason: str) -> Row:
    """What stands in the table for a check that ended before its time."""
    return Row(case, f"failed: {' '.join(reason.split())[:160]}")


def table(parts: Iterable[tuple[str, float, list[Row]]]) -> str:
    """Parts, with the seconds each took, and their rows."""
    lines: list[str] = []
    for part, seconds, rows in parts:
        lines.append(f"{part} ({seconds:.0f} s)")
        for row in rows:
            ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
            target = f"{ratio:>9} {row.target:<8}{row.verdict}"
            lines.append(f"  {row.case:<42}{row.measured:>18}  {row.reference:<24}{target}".rstrip())
    return "\n".join(lines)
