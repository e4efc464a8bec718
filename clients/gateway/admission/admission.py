"""The way in: who may submit how much, to a model that somebody serves, while its queue has room."""

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

_TIME_TO_CANCEL: Final = 5.0
"""Seconds, at a Redis that may be away."""


class Admission:
    """Submits requests for callers."""

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
        """The requests that ``drafts`` are, after all checks that can be made before any is submitted.

        They get ``first_id`` and the ids of its parts. Those who ``can_wait`` may ask a known model that no
        worker serves at the moment.

        Raises:
            ApiError: 404 the model, 413 the prompts, 429 the caller's rate, 503 no worker.
            RequestError: one of them is not valid.
            Unavailable: see ``Connection.call``.
        """
        limit = self._settings.max_prompt
        if (size := sum(draft.size for draft in drafts)) > limit:
            raise too_large(f"The prompts may have {limit} bytes together, these have {size}.", "prompt")
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
        """The requests that ``drafts`` are, under ``first_id`` and the ids of its parts.

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
        """Enqueue requests of one model: all or none. Those that are known already are passed over.

        ``repeatable``: whoever is told that this failed may submit the same ids again.

        Raises:
            ApiError: 429 the queue has no room for all.
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
            # Redis may have them for all that, and what nobody can come back to should not run.
            if repeatable:
                raise
            with anyio.move_on_after(_TIME_TO_CANCEL, shield=True), suppress(Unavailable):
                await cancel_all([self._client.attach(request.id) for request in requests])
            raise

    def attach(self, request_id: str) -> AsyncHandle:
        """A handle on a request that may have been submitted."""
        return self._client.attach(request_id)


async def cancel_all(handles: Sequence[AsyncHandle]) -> None:
    """Cancel every request.

    Raises:
        Unavailable: some could not be reached; the others were asked.
    """
    outcomes = await asyncio.gather(*(handle.cancel() for handle in handles), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
