"""Admission of requests: checks of size, model and rate, then enqueueing within the queue limit."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import anyio

from ...async_client import AsyncClient, AsyncHandle
from ...errors import QueueFull, Unavailable
from ...protocol import Request
from ...protocol.keys import MODEL_NAME
from ...submission import RequestFields, request_from
from ..access.api_keys import Caller
from ..access.rate_limit import spend
from ..access.tenant_ids import part_of
from ..errors import no_worker, queue_full, too_large, unknown_model
from ..redis_keys import GatewayKeys
from ..settings import GatewaySettings
from .drain_rate import DrainRate
from .request_draft import RequestDraft
from .worker_directory import WorkerDirectory

_CANCEL_WITHIN: Final = 5.0
"""Seconds, as Redis may be unreachable."""


class Admission:
    """Checks and enqueues callers' requests."""

    def __init__(
        self, settings: GatewaySettings, client: AsyncClient, worker_directory: WorkerDirectory
    ) -> None:
        self.drain_rate = DrainRate(client.connection, client.keys)
        self._settings = settings
        self._client = client
        self._worker_directory = worker_directory
        self._keys = GatewayKeys(settings.namespace)

    async def admit(
        self,
        caller: Caller,
        model: str,
        drafts: Sequence[RequestDraft],
        first_id: str,
        trace: str,
        *,
        can_wait: bool = False,
    ) -> list[Request]:
        """The requests of ``drafts``, after all checks that can be made before any is submitted.

        Their ids are ``first_id`` and ``tenant_ids.part_of`` it. With ``can_wait`` a known model is accepted
        although no worker serves it at the moment.

        Raises:
            ApiError: 404 unknown model, 413 prompts too large, 429 the caller's rate limit, 503 no worker.
            RequestError: one of them is not valid.
            Unavailable: see ``Connection.call``.
        """
        limit = self._settings.max_prompt
        if (size := sum(draft.size for draft in drafts)) > limit:
            raise too_large(f"The prompts have {size} bytes together, the limit is {limit}.", "prompt")
        await self.check_model(model, can_wait=can_wait)
        requests = self.prepare(caller, drafts, first_id, trace)
        await spend(self._client.connection, self._keys, caller, len(drafts))
        return requests

    async def check_model(self, model: str, *, can_wait: bool) -> None:
        """Raises as ``admit`` does for models."""
        if not MODEL_NAME.match(model):
            raise unknown_model(model)
        if await self._worker_directory.serves(model):
            return
        if model not in self._settings.models and not await self._worker_directory.has_queue(model):
            raise unknown_model(model)
        if not can_wait:
            raise no_worker(model)

    def prepare(
        self, caller: Caller, drafts: Sequence[RequestDraft], first_id: str, trace: str | None = None
    ) -> list[Request]:
        """The requests of ``drafts``, with ids ``first_id`` and ``tenant_ids.part_of`` it.

        Raises:
            RequestError: one of them is not valid.
        """
        return [
            request_from(
                draft.prompt,
                None,
                draft.fields
                | RequestFields(
                    id=part_of(first_id, index),
                    tenant=caller.tenant,
                    priority=caller.priority_for(draft.fields.get("priority")),
                    trace=trace,
                ),
            )
            for index, draft in enumerate(drafts)
        ]

    async def submit(self, requests: Sequence[Request], *, repeatable: bool) -> list[AsyncHandle]:
        """Enqueue requests of one model: all or none. Ids that exist already are not enqueued again.

        ``repeatable``: the client can submit the same ids again if this fails.

        Raises:
            ApiError: 429 the queue has no capacity for all.
            RequestError, Unavailable: see ``AsyncClient.submit_all``.
        """
        model = requests[0].model
        await self.drain_rate.watch(model)
        try:
            return await self._client.submit_all(requests)
        except QueueFull as error:
            wait = await self.drain_rate.retry_after(model, error.depth, error.limit)
            raise queue_full(error, wait) from error
        except Unavailable:
            # Redis may have accepted them before the error; what no client can retry must not run.
            if repeatable:
                raise
            with anyio.move_on_after(_CANCEL_WITHIN, shield=True), suppress(Unavailable):
                await cancel_all([self._client.attach(request.id) for request in requests])
            raise

    def attach(self, request_id: str) -> AsyncHandle:
        """A handle on a request that may have been submitted."""
        return self._client.attach(request_id)


async def cancel_all(handles: Sequence[AsyncHandle]) -> None:
    """Cancel every request.

    Raises:
        Unavailable: some could not be cancelled; the others were.
    """
    outcomes = await asyncio.gather(*(handle.cancel() for handle in handles), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
