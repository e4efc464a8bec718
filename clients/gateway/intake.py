"""The way in: who may submit how much, to a model that somebody serves, while its queue has room."""

from collections.abc import Sequence

from ..async_client import AsyncClient, AsyncHandle
from ..errors import QueueFull
from ..protocol.keys import MODEL_NAME
from ..submission import RequestFields
from .api_keys import Caller
from .ask import Ask
from .drain_rate import DrainRate
from .errors import ApiError, no_worker, queue_full, too_large, unknown_model
from .fleet import Fleet
from .identity import id_for, new_id, part_of
from .rate_limit import spend
from .redis_keys import GatewayKeys
from .settings import GatewaySettings


class Intake:
    """Submits requests for callers."""

    def __init__(self, settings: GatewaySettings, client: AsyncClient, fleet: Fleet) -> None:
        self.drain_rate = DrainRate(client.connection, client.keys)
        self._settings = settings
        self._client = client
        self._fleet = fleet
        self._keys = GatewayKeys(settings.namespace)

    async def admit(self, caller: Caller, model: str, asks: Sequence[Ask], *, can_wait: bool = False) -> None:
        """Check all that can be before anything is submitted.

        Those who ``can_wait`` may ask a known model that no worker serves at the moment.

        Raises:
            ApiError: 404 the model, 413 the prompts, 429 the caller's rate, 503 no worker.
            Unavailable: see ``Connection.call``.
        """
        limit = self._settings.max_prompt
        if (size := sum(ask.size for ask in asks)) > limit:
            raise too_large(f"The prompts may have {limit} bytes together, these have {size}.", "prompt")
        await self.check_model(model, can_wait=can_wait)
        await spend(self._client.connection, self._keys, caller, len(asks))

    async def check_model(self, model: str, *, can_wait: bool) -> None:
        """Raises as ``admit`` does for models."""
        if not MODEL_NAME.match(model):
            raise unknown_model(model)
        if await self._fleet.serves(model):
            return
        if model not in self._settings.models and not await self._fleet.has_queue(model):
            raise unknown_model(model)
        if not can_wait:
            raise no_worker(model)

    async def submit(
        self, caller: Caller, asks: Sequence[Ask], *, key: bytes | None, trace: str | None
    ) -> list[AsyncHandle]:
        """Enqueue ``asks``: all or, where there is no ``key``, none.

        ``key``: those with the same key are submitted once however often this is called; it then goes on
        where an earlier call was refused.

        Raises:
            ApiError: 429 the queue is full.
            RequestError, Unavailable: see ``AsyncClient.submit``.
        """
        first = new_id(caller.tenant) if key is None else id_for(caller.tenant, b"request", key)
        handles: list[AsyncHandle] = []
        for index, ask in enumerate(asks):
            try:
                handles.append(await self.submit_one(caller, ask, part_of(first, index), trace))
            except ApiError:
                if key is None:
                    await cancel_all(handles)
                raise
        return handles

    async def submit_one(
        self, caller: Caller, ask: Ask, request_id: str, trace: str | None = None
    ) -> AsyncHandle:
        """Enqueue one request under an id of the caller's. Raises as ``submit``."""
        model = ask.fields.get("model", "")
        await self.drain_rate.watch(model)
        ours = RequestFields(
            id=request_id,
            tenant=caller.tenant,
            priority=caller.priority_for(ask.fields.get("priority")),
            trace=trace,
        )
        try:
            return await self._client.submit(ask.prompt, **(ask.fields | ours))
        except QueueFull as error:
            wait = await self.drain_rate.retry_after(model, error.depth, error.limit)
            raise queue_full(error, wait) from error

    def attach(self, request_id: str) -> AsyncHandle:
        """A handle on a request that may have been submitted."""
        return self._client.attach(request_id)


async def cancel_all(handles: Sequence[AsyncHandle]) -> None:
    for handle in handles:
        await handle.cancel()
