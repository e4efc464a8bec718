"""A request's state as its clients see it, and cancelling."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import msgpack

from .connection import Connection
from .errors import UnknownRequest
from .protocol import FinishReason, Keys
from .result import Timings, timings_of
from .scripts import CANCEL


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """Where a request stands. ``attempts`` above one: its worker was lost, and another went on."""

    id: str
    status: Literal["queued", "running", "finished"]
    attempts: int
    worker: str | None
    cancelled: bool
    """Whether cancelling was asked for; the request may still have ended otherwise."""
    finish_reason: FinishReason | None
    timings: Timings


async def read_status(connection: Connection, keys: Keys, request_id: str) -> RequestStatus:
    """The status now.

    Raises:
        UnknownRequest: there is no state of this id.
        Unavailable: see ``Connection.call``.
    """
    key = keys.request(request_id)

    async def read(server: Any) -> dict[bytes, bytes]:
        return await server.hgetall(key)

    fields = await connection.call(read)
    state = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}
    if state.get("status") not in ("queued", "running", "finished"):
        raise UnknownRequest(request_id)
    return _status_of(request_id, state)


async def cancel(connection: Connection, keys: Keys, request_id: str, model: str | None) -> bool:
    """Ask for a request's end; whether there was one that had not ended.

    The flag in its state reaches whoever claims it or serves it; the notice makes its worker look at once.
    ``model`` is where to send the notice if the state does not say.
    """
    status, recorded_model = await connection.call(
        lambda server: CANCEL.run(server, [keys.request(request_id)], [])
    )
    if status == b"finished":
        return False
    where = recorded_model.decode() or model
    if where is not None:
        notice = cast(bytes, msgpack.packb({"cancel": request_id}))
        await connection.publish(keys.control(where), notice)
    return bool(status)


def _status_of(request_id: str, state: Mapping[str, str]) -> RequestStatus:
    return RequestStatus(
        id=request_id,
        status=cast(Literal["queued", "running", "finished"], state["status"]),
        attempts=int(state.get("attempts") or 0),
        worker=state.get("worker") or None,
        cancelled=bool(state.get("cancel")),
        finish_reason=cast(FinishReason | None, state.get("finish_reason") or None),
        timings=timings_of(state),
    )
