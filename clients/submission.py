"""Putting a request on its queue: once, bounded, and so that a client's crash half-way heals.

On one server that is one script. A request's state and its model's queues lie in different slots of a Redis
Cluster, so there it takes several, and state without an ``entry`` means that nobody knows of a queue entry
yet: submitting again adds one. Should there be two after all, the second does nothing, since claiming passes
over an entry whose request runs or has ended.
"""

from typing import Any, Final, TypedDict
from uuid import uuid4

from .connection import Connection
from .errors import QueueFull
from .protocol import (
    LANES,
    PRIORITIES,
    Keys,
    Message,
    Priority,
    Request,
    encode_request,
    lane_of,
    make_request,
)
from .scripts import ENQUEUE, RECORD, SUBMIT, WITHDRAW

PENDING_TTL: Final = 24 * 3600
"""Seconds that the state of a queued request is kept; a worker's claim sets its own."""

_UNLIMITED: Final = 1 << 53
_KNOWN: Final = (0, b"known")
"""In place of a queue's depth and an entry: there is nothing to do."""


class RequestFields(TypedDict, total=False):
    """What a request may say beside its prompt. Meanings and limits are those of ``protocol.Request``."""

    id: str
    model: str
    messages: list[Message] | list[dict[str, Any]]
    tokens: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int | None
    stop: list[str]
    stop_tokens: list[int]
    ignore_eos: bool
    logprobs: int | None
    priority: Priority
    deadline: int | None
    tenant: str | None
    metadata: Any
    trace: str | None


def request_from(prompt: str | None, model: str | None, fields: RequestFields) -> Request:
    """A valid request, with a new id and the default ``model`` where ``fields`` names none.

    Raises:
        RequestError: names the field that is wrong, and its limit.
    """
    defaults = {"id": uuid4().hex} | ({} if model is None else {"model": model})
    given = {} if prompt is None else {"prompt": prompt}
    return make_request(**{**defaults, **given, **fields})


async def enqueue(connection: Connection, keys: Keys, request: Request, limit: int | None) -> None:
    """Enqueue ``request``, unless its id is known: then nothing happens.

    Raises:
        QueueFull: the model's queues hold ``limit`` entries or more.
        RequestError: the request is too large.
        Unavailable: see ``Connection.call``. Whether it was enqueued is then unknown; repeat to be sure.
    """
    data = encode_request(request)
    queues = keys.queues(request.model)
    chosen: list[str | bytes | int] = [
        1 + PRIORITIES.index(request.priority) * LANES + lane_of(request.tenant),
        _UNLIMITED if limit is None else limit,
        data,
    ]
    if connection.location.kind == "cluster":
        depth, entry = await _in_a_cluster(
            connection, keys.request(request.id), queues, request.model, chosen
        )
    else:
        depth, entry = (
            await connection.call(
                lambda server: SUBMIT.run(
                    server, [keys.request(request.id), *queues], [*chosen, request.model, PENDING_TTL * 1000]
                )
            )
            or _KNOWN
        )
    if not entry:
        raise QueueFull(depth, limit or 0)


async def _in_a_cluster(
    connection: Connection, state: str, queues: list[str], model: str, chosen: list[str | bytes | int]
) -> tuple[int, bytes]:
    """The queue's depth before, and the entry's id; empty when it was full."""

    async def record(entry: bytes) -> tuple[bool, bytes, bytes]:
        created, status, earlier_entry = await connection.call(
            lambda server: RECORD.run(server, [state], [model, PENDING_TTL * 1000, entry])
        )
        return bool(created), status, earlier_entry

    created, status, earlier_entry = await record(b"")
    if not created and (earlier_entry or status != b"queued"):
        return _KNOWN
    depth, entry = await connection.call(lambda server: ENQUEUE.run(server, queues, chosen))
    if entry:
        await record(entry)
    elif created:
        await connection.call(lambda server: WITHDRAW.run(server, [state], []))
    return depth, entry
