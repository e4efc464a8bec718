"""The client for asyncio (and anyio on asyncio)."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from types import TracebackType
from typing import Final, Self, Unpack

from . import request_state
from .channels import Channels
from .connection import Connection
from .event_log import EventLog
from .follow import follow
from .protocol import Delta, Done, Event, Keys, Request
from .request_state import RequestStatus
from .result import Result, completed_text, result_of, timings_of
from .submission import RequestFields, enqueue, request_from
from .transcript import Transcript

DEFAULT_URL: Final = "redis://localhost:6379/0"
DEFAULT_QUEUE_LIMIT: Final = 10_000


class AsyncClient:
    """Submits requests to workers, and follows them.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://``, with user, password and database; or
            ``redis+sentinel://`` or ``redis+cluster://``, see ``redis_url``.
        model: served name to submit to where a request names none.
        namespace: prefix of all keys; that of the workers.
        queue_limit: ``submit`` raises ``QueueFull`` when the model's queues hold as many requests; None for
            no limit.
        timeout: seconds for one answer of Redis.
        patience: seconds that a call or a stream rides out an unreachable Redis before ``Unavailable``.

    It connects when first used, keeps one connection for all it follows and up to 16 for commands, and
    belongs to one event loop. Close it with ``aclose`` or ``async with``.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        model: str | None = None,
        namespace: str = "headrace",
        queue_limit: int | None = DEFAULT_QUEUE_LIMIT,
        timeout: float = 5.0,
        patience: float = 30.0,
    ) -> None:
        self.model = model
        self.queue_limit = queue_limit
        self.connection = Connection(url, timeout=timeout, patience=patience)
        self.keys = Keys(namespace, self.connection.location.database)
        self.channels = Channels(self.connection)

    async def submit(self, prompt: str | None = None, **fields: Unpack[RequestFields]) -> "AsyncHandle":
        """Enqueue a request and return a handle on it at once.

        One of ``prompt``, ``messages`` and ``tokens`` is needed. Without an ``id`` one is made up. An id that
        is known already is not enqueued again: the handle is then on the request that has it.

        Raises:
            RequestError: the request is not valid; names the field and its limit.
            QueueFull: with ``depth`` and ``limit``; nothing was enqueued.
            Unavailable: Redis was away for longer than ``patience``; repeat with the same id.
        """
        (handle,) = await self.submit_all([request_from(prompt, self.model, fields)])
        return handle

    async def submit_all(self, requests: Sequence[Request]) -> "list[AsyncHandle]":
        """Enqueue requests, made by ``make_request``, of one model: all or none.

        Ids that are known are passed over, as by ``submit``; the handles are in the order of ``requests``.
        Raises as ``submit``, and ``ValueError`` for requests of several models, or none.
        """
        await enqueue(self.connection, self.keys, requests, self.queue_limit)
        return [AsyncHandle(self, request.id, request.model) for request in requests]

    def attach(self, request_id: str, *, wait: float = 0.0) -> "AsyncHandle":
        """A handle on a request that was submitted elsewhere or earlier. Costs nothing until it is used.

        An id that Redis does not know makes the handle raise ``UnknownRequest``; ``wait`` gives it so many
        seconds to appear: a request that another program put on the queue bare is known once it is claimed.

        Raises:
            ValueError: this cannot be a request's id.
        """
        self.keys.request(request_id)
        return AsyncHandle(self, request_id, self.model, wait)

    async def aclose(self) -> None:
        """Close all connections. Streams that still run fail."""
        await self.channels.aclose()
        await self.connection.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncHandle:
    """One request. Any number of handles, here and in other processes, may follow it at the same time."""

    def __init__(self, client: AsyncClient, request_id: str, model: str | None, wait: float = 0.0) -> None:
        self.id = request_id
        self._client = client
        self.model = model
        self._wait = wait
        self._result: Result | None = None

    def __aiter__(self) -> AsyncIterator[Event]:
        return self.events()

    def events(self, *, seq: int = 0, pos: int = 0) -> AsyncGenerator[Event]:
        """The request's events from its beginning: ``Delta`` pieces, each only what is new, then ``Done``.

        To go on where an earlier stream stopped, give the number of tokens and of characters it had: ``seq +
        len(tokens)`` and ``pos + len(text)`` of its last piece.

        Raises:
            UnknownRequest: never submitted, or expired.
            EventsLost: it has ended and its log is damaged.
            Unavailable: Redis was away for longer than the client's patience.
        """
        return self._follow(self._log(), Transcript(seq, pos))

    async def result(self) -> Result:
        """Wait for the end, whichever it is. Raises as ``events``."""
        if self._result is None:
            log = self._log()
            deltas: list[Delta] = []
            async for event in self._follow(log, Transcript()):
                if isinstance(event, Done):
                    self._result = result_of(self.id, deltas, event, timings_of(log.state))
                else:
                    deltas.append(event)
        assert self._result is not None  # noqa: S101  a stream ends with Done or raises
        return self._result

    async def text(self) -> str:
        """Wait for the whole text.

        Raises:
            RequestFailed: it was cancelled, expired or failed; the error's ``result`` has what there is.
            UnknownRequest, EventsLost, Unavailable: as ``events``.
        """
        return completed_text(await self.result())

    async def status(self) -> RequestStatus:
        """Where the request stands now. Raises ``UnknownRequest`` and ``Unavailable``."""
        return await request_state.read_status(self._client.connection, self._client.keys, self.id)

    async def cancel(self) -> bool:
        """Ask for the request's end; it comes as ``Done`` with ``cancelled`` unless it ends otherwise before.

        Returns whether there was such a request and it had not ended. Raises ``Unavailable``.
        """
        client = self._client
        return await request_state.cancel(client.connection, client.keys, self.id, self.model)

    def _log(self) -> EventLog:
        return EventLog(self._client.connection, self._client.keys, self.id)

    def _follow(self, log: EventLog, transcript: Transcript) -> AsyncGenerator[Event]:
        return follow(log, self._client.channels, self._client.keys.channel(self.id), transcript, self._wait)
