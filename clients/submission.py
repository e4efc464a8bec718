"""Putting requests on their queue: once, bounded, all or none, and so that a client's crash half-way heals.

On one server that is one script. A request's state and its model's queues lie in different slots of a Redis
Cluster, so there it takes several, and state without an ``entry`` means that nobody knows of a queue entry
yet: submitting again adds one. So it does where the last was added a while ago and the request has not ended:
somebody may have trimmed the stream. Should there be two after all, the second does nothing, since claiming
passes over an entry whose request has another on the queue, or has ended.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypedDict
from uuid import uuid4

import anyio

from .connection import Connection
from .errors import QueueFull, Unavailable
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

_ENQUEUE_AGAIN_AFTER: Final = 15
"""Seconds from a request's last entry until submitting it again adds another."""
_UNLIMITED: Final = 1 << 53
_TIME_TO_WITHDRAW: Final = 2.0
"""Seconds for taking back what was begun, while Redis does not answer everywhere."""


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


async def enqueue(connection: Connection, keys: Keys, requests: Sequence[Request], limit: int | None) -> None:
    """Enqueue ``requests``, which are of one model: all or none. One whose id is known is passed over,
    or enqueued again if that was long ago and there is room.

    Raises:
        QueueFull: the model's queues would hold more than ``limit`` entries.
        RequestError: a request is too large.
        ValueError: there are none, or of several models.
        Unavailable: see ``Connection.call``. Whether they were enqueued is then unknown; repeat to be sure.
    """
    models = {request.model for request in requests}
    if len(models) != 1:
        raise ValueError(f"requests: must be of 1 model, got {len(models)}")
    (model,) = models
    submission = _Submission(
        model,
        [keys.request(request.id) for request in requests],
        [
            (
                1 + PRIORITIES.index(request.priority) * LANES + lane_of(request.tenant),
                encode_request(request),
            )
            for request in requests
        ],
        keys.queues(model),
        _UNLIMITED if limit is None else limit,
    )
    in_a_cluster = connection.location.kind == "cluster"
    depth = await (_in_a_cluster if in_a_cluster else _on_one_server)(connection, submission)
    if depth is not None:
        raise QueueFull(depth, limit or 0, len(requests))


@dataclass(frozen=True, slots=True)
class _Submission:
    """``entries`` are the number of a queue (from 1) and what to add to it, one for each of ``states``."""

    model: str
    states: list[str]
    entries: list[tuple[int, bytes]]
    queues: list[str]
    limit: int


async def _on_one_server(connection: Connection, submission: _Submission) -> int | None:
    """The queues' depth where there is no room; None where the requests are enqueued."""
    times = (PENDING_TTL * 1000, _ENQUEUE_AGAIN_AFTER * 1000)
    arguments = [submission.limit, submission.model, *times, *chain(*submission.entries)]
    depth, enqueued = await connection.call(
        lambda server: SUBMIT.run(server, [*submission.states, *submission.queues], arguments)
    )
    return depth if enqueued < 0 else None


async def _in_a_cluster(connection: Connection, submission: _Submission) -> int | None:
    """As ``_on_one_server``. All queues of a model lie in one slot, so one script adds the entries."""

    async def record(state: str, entry: bytes) -> tuple[bool, bytes]:
        arguments = [submission.model, PENDING_TTL * 1000, entry, _ENQUEUE_AGAIN_AFTER * 1000]
        created, due = await connection.call(lambda server: RECORD.run(server, [state], arguments))
        return bool(created), due

    async def add(entries: Sequence[tuple[str, tuple[int, bytes]]]) -> int | None:
        arguments = [submission.limit, *chain(*(entry for _, entry in entries))]
        depth, *added = await connection.call(
            lambda server: ENQUEUE.run(server, submission.queues, arguments)
        )
        for (state, _), entry in zip(entries, added, strict=False):
            await record(state, entry)
        return None if added else depth

    created: list[str] = []
    fresh: list[tuple[str, tuple[int, bytes]]] = []
    again: list[tuple[str, tuple[int, bytes]]] = []

    async def withdraw() -> None:
        for state in created:
            await connection.call(lambda server, state=state: WITHDRAW.run(server, [state], []))

    try:
        for state, entry in zip(submission.states, submission.entries, strict=True):
            new, due = await record(state, b"")
            if new:
                created.append(state)
            if due:
                (again if due == b"again" else fresh).append((state, entry))
    except Unavailable:
        # A state without an entry is never served and expires; until then it must not read as queued.
        with anyio.move_on_after(_TIME_TO_WITHDRAW), suppress(Unavailable):
            await withdraw()
        raise
    if fresh and (depth := await add(fresh)) is not None:
        await withdraw()
        return depth
    if again:
        await add(again)  # a second entry needs no room to be made for it
    return None
