"""WebSocket session: submits, follows and cancels any number of requests.

Messages are JSON objects. From the client::

    {"type": "authorize", "key": "hr_..."}                      first, without an Authorization header
    {"type": "submit", "ref": "a", "request": {...}}            a body of POST /v1/requests; then follows it
    {"type": "follow", "id": "...", "after": "12.57"}
    {"type": "cancel", "id": "..."}

To the client: ``accepted`` with ``ref`` and ``id``; ``delta`` and ``done`` with ``id`` and ``position``,
the value for ``after``; ``error`` with ``ref`` or ``id``.
"""

from typing import Annotated, Any, Final, Literal

import anyio
from anyio.abc import TaskGroup, TaskStatus
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from ...async_client import AsyncHandle
from ...errors import HeadraceError
from ...protocol import RequestError
from ..access.api_keys import Caller
from ..access.dependencies import caller_by_key, key_in_header, own_handle
from ..access.tenant_ids import new_id
from ..errors import ApiError, api_error_of, internal_error, invalid, validation_error
from ..gateway import Gateway
from ..json_body import compact, parse_json
from ..streams.delivery import count_delivered
from ..streams.merge import merge_events
from ..streams.position import StreamPosition
from ..streams.sse import ReaderStalled
from .events import event_body
from .job_body import JobBody, job_draft

AUTHORIZE_WITHIN: Final = 10.0
_POLICY, _RESTART, _STALLED = 1008, 1012, 1011


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Submit(_Message):
    type: Literal["submit"]
    ref: str = Field(default="", max_length=128)
    request: JobBody


class _Follow(_Message):
    type: Literal["follow"]
    id: str = Field(max_length=200)
    after: str | None = Field(default=None, max_length=32)


class _Cancel(_Message):
    type: Literal["cancel"]
    id: str = Field(max_length=200)


_Any = _Submit | _Follow | _Cancel
_MESSAGES: Final[TypeAdapter[_Any]] = TypeAdapter(Annotated[_Any, Field(discriminator="type")])


class SocketSession:
    """Serves one accepted WebSocket until either side ends it."""

    def __init__(self, gateway: Gateway, socket: WebSocket) -> None:
        self._gateway = gateway
        self._socket = socket
        self._send_lock = anyio.Lock()

    async def run(self) -> None:
        try:
            caller = await self._authorize()
            with self._gateway.slots.take(caller, resumable=True) as leave:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._receive, caller, tasks)
                    await leave
                    await self._socket.close(_RESTART, "gateway stopping; reconnect")
                    tasks.cancel_scope.cancel()
        except* ApiError as errors:
            reason = next(str(error) for error in _leaves(errors))
            await self._socket.close(_POLICY, reason[:100])
        except* ReaderStalled:
            await self._socket.close(_STALLED, "write timeout: the client read nothing")
        except* (WebSocketDisconnect, TimeoutError):
            pass

    async def _authorize(self) -> Caller:
        key = key_in_header(self._socket)
        if key is None and self._gateway.keys is not None:
            with anyio.fail_after(AUTHORIZE_WITHIN):
                message = _parsed(await self._text())
            key = message.get("key") if message.get("type") == "authorize" else None
        return caller_by_key(self._gateway, key if isinstance(key, str) else None)

    async def _text(self) -> str:
        """Raises ``ApiError`` for bytes."""
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005), message.get("reason"))
        text: str | None = message.get("text")
        if text is None:
            raise invalid("A message must be text.", None)
        return text

    async def _receive(self, caller: Caller, tasks: TaskGroup) -> None:
        while True:
            reference: dict[str, str] = {}
            try:
                text = await self._text()
                raw = _parsed(text)
                reference = {name: raw[name] for name in ("ref", "id") if isinstance(raw.get(name), str)}
                match _MESSAGES.validate_python(raw):
                    case _Submit() as message:
                        await self._submit(caller, message, tasks)
                    case _Follow() as message:
                        await self._follow(caller, message, tasks)
                    case _Cancel() as message:
                        handle = own_handle(self._gateway, caller, message.id)
                        await handle.status()
                        await handle.cancel()
            except ValidationError as error:
                problems = error.errors(include_url=False, include_input=False, include_context=False)
                await self._fail(
                    reference, validation_error([{**p, "loc": ("", *p["loc"])} for p in problems])
                )
            except (ApiError, HeadraceError, RequestError) as error:
                await self._fail(reference, error)

    async def _submit(self, caller: Caller, message: _Submit, tasks: TaskGroup) -> None:
        if message.request.webhook is not None:
            raise invalid("webhook: is for POST /v1/requests", "webhook")
        self._gateway.slots.check(caller)
        draft = job_draft(message.request)
        model, trace = message.request.model, self._socket.state.trace
        requests = await self._gateway.admission.admit(caller, model, [draft], new_id(caller.tenant), trace)
        (handle,) = await self._gateway.admission.submit(requests, repeatable=False)
        self._gateway.metrics.submitted.labels(message.request.model).inc()
        await self._send({"type": "accepted", "ref": message.ref, "id": handle.id})
        await tasks.start(self._deliver, caller, handle, StreamPosition())

    async def _follow(self, caller: Caller, message: _Follow, tasks: TaskGroup) -> None:
        handle = own_handle(self._gateway, caller, message.id)
        position = StreamPosition.parse(message.after)
        await handle.status()
        await tasks.start(self._deliver, caller, handle, position)

    async def _deliver(
        self,
        caller: Caller,
        handle: AsyncHandle,
        position: StreamPosition,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        heartbeat = self._gateway.settings.heartbeat
        with self._gateway.slots.take(caller, resumable=True) as leave:
            task_status.started()
            try:
                events = handle.events(seq=position.tokens, pos=position.characters)
                items = merge_events(
                    [count_delivered(events, self._gateway.metrics, None)], heartbeat, heartbeat, leave
                )
                async for item in items:
                    if item is not None:
                        position.advance(item[1])
                        body = event_body(item[1])
                        await self._send({**body, "id": handle.id, "position": str(position)})
            except HeadraceError as error:
                await self._fail({"id": handle.id}, error)

    async def _fail(self, reference: dict[str, str], error: Exception) -> None:
        failure = api_error_of(error) or internal_error()
        self._gateway.metrics.count_error(failure)
        await self._send({"type": "error", **reference, **failure.body})

    async def _send(self, message: dict[str, Any]) -> None:
        """Waits for a slow client, which delays all that it follows here; nothing is buffered."""
        try:
            with anyio.fail_after(self._gateway.settings.write_timeout):
                async with self._send_lock:
                    await self._socket.send_text(compact(message).decode())
        except TimeoutError:
            raise ReaderStalled from None


def _parsed(text: str) -> dict[str, Any]:
    """Raises ``ApiError``."""
    message = parse_json(text, "A message")
    if not isinstance(message, dict):
        raise invalid("A message must be an object.", None)
    return message  # pyright: ignore[reportUnknownVariableType]


def _leaves(group: BaseExceptionGroup[ApiError]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
