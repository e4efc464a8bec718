"""OpenAI's ``/v1/batches``."""

import re
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from ..access.dependencies import CallerDep, GatewayDep
from ..batches.lines import input_lost
from ..batches.store import ENDED, Batch
from ..errors import invalid
from ..gateway import Gateway
from .schemas import BatchCounts, BatchList, BatchObject, errors

router = APIRouter(tags=["Batches"])

_WINDOW: Final = re.compile(r"([1-9][0-9]{0,4})([mh])\Z")


class BatchBody(BaseModel):
    model_config = ConfigDict(strict=True)

    input_file_id: str = Field(max_length=200)
    endpoint: Literal["/v1/chat/completions", "/v1/completions"]
    completion_window: Annotated[str, Field(max_length=10)] = "24h"
    """Minutes or hours, such as 30m or 24h; lines that have not completed by then expire."""
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None


@router.post("/v1/batches", responses=errors(404, 408, 409, 413), summary="Run a file of requests")
async def create(body: BatchBody, caller: CallerDep, gateway: GatewayDep) -> BatchObject:
    """Its requests have low priority: they run when no others wait."""
    window = _WINDOW.match(body.completion_window)
    if window is None:
        raise invalid("completion_window: must be like 30m or 24h", "completion_window")
    seconds = int(window[1]) * (60 if window[2] == "m" else 3600)
    for name, value in (body.metadata or {}).items():
        if len(name) > 64 or len(value) > 512:
            raise invalid("metadata: names may have 64 characters and values 512", "metadata")
    file = await gateway.files.find(caller, body.input_file_id)
    if file.purpose != "batch":
        raise invalid("input_file_id: must be a file for batches", "input_file_id")
    batch = await gateway.batch_store.create(
        caller, file, body.endpoint, body.completion_window, seconds, body.metadata
    )
    await gateway.batch_runner.start(caller, batch)
    return await _batch_object(gateway, batch)


@router.get("/v1/batches", responses=errors(), summary="List batches")
async def list_batches(caller: CallerDep, gateway: GatewayDep) -> BatchList:
    return BatchList(
        data=[await _batch_object(gateway, batch) for batch in await gateway.batch_store.all_of(caller)]
    )


@router.get("/v1/batches/{batch_id}", responses=errors(404), summary="A batch's progress")
async def read(batch_id: str, caller: CallerDep, gateway: GatewayDep) -> BatchObject:
    return await _batch_object(gateway, await gateway.batch_store.find(caller, batch_id))


@router.post("/v1/batches/{batch_id}/cancel", responses=errors(404, 409), summary="Cancel a batch")
async def cancel(batch_id: str, caller: CallerDep, gateway: GatewayDep) -> BatchObject:
    """Results so far are kept; a batch that has ended is unchanged."""
    batch = await gateway.batch_store.find(caller, batch_id)
    await gateway.batch_store.advance(batch, "cancelling")
    return await _batch_object(gateway, await gateway.batch_store.find(caller, batch_id))


async def _batch_object(gateway: Gateway, batch: Batch) -> BatchObject:
    await gateway.batch_runner.ensure_scheduled(batch)
    completed, failed = await gateway.batch_store.counts(batch)
    ended = batch.status in ENDED
    times: dict[str, Any] = {f"{status}_at": time for status, time in batch.times.items()}
    return BatchObject(
        id=batch.id,
        endpoint=batch.endpoint,
        errors=input_lost() if batch.status == "failed" else None,
        input_file_id=batch.input_file,
        completion_window=batch.window,
        status=batch.status,
        output_file_id=batch.output_file if ended and completed else None,
        error_file_id=batch.error_file if ended and failed else None,
        created_at=batch.created,
        expires_at=batch.expires,
        request_counts=BatchCounts(total=batch.total, completed=completed, failed=failed),
        metadata=batch.metadata,
        **times,
    )
