"""What a worker's record says about the work under way, for the live view."""

import json
from collections.abc import Iterable
from dataclasses import asdict

from .engine.snapshot import Snapshot


def activity(snapshot: Snapshot, first_tokens: Iterable[float]) -> dict[str, str | int]:
    """Fields of the record: ``sequences`` and ``first_tokens`` are JSON, the latter in milliseconds."""
    return {
        "sequences": _json([asdict(sequence) for sequence in snapshot.sequences]),
        "block_size": snapshot.block_size,
        "block_stride": snapshot.block_stride,
        "block_map": snapshot.block_map,
        "first_tokens": _json([round(seconds * 1000, 1) for seconds in first_tokens]),
    }


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
