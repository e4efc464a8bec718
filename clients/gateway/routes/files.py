"""OpenAI's ``/v1/files``, for batches."""

from collections.abc import AsyncGenerator
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, File, Form, UploadFile
from starlette.responses import Response, StreamingResponse

from ..access.dependencies import CallerDep, GatewayDep
from ..batches.files import StoredFile
from ..batches.lines import split_lines
from ..errors import invalid
from .schemas import Deleted, FileList, FileObject, errors

router = APIRouter(tags=["Batches"])


@router.post("/v1/files", responses=errors(408, 409, 413), summary="Upload JSON lines for a batch")
async def upload(
    caller: CallerDep,
    gateway: GatewayDep,
    file: Annotated[UploadFile, File(description="One request a line, as OpenAI's batches have them.")],
    purpose: Annotated[str, Form()],
) -> FileObject:
    if purpose != "batch":
        raise invalid("purpose: must be batch", "purpose")
    content = await file.read()
    lines = await to_thread.run_sync(split_lines, content, gateway.settings.max_batch_lines)
    name = (file.filename or "upload.jsonl")[:255].encode("utf-8", "replace").decode()
    return _file_object(await gateway.files.store(caller, name, purpose, lines))


@router.get("/v1/files", responses=errors(), summary="List files")
async def list_files(caller: CallerDep, gateway: GatewayDep) -> FileList:
    return FileList(data=[_file_object(file) for file in await gateway.files.all_of(caller)])


@router.get("/v1/files/{file_id}", responses=errors(404), summary="Describe a file")
async def describe(file_id: str, caller: CallerDep, gateway: GatewayDep) -> FileObject:
    return _file_object(await gateway.files.find(caller, file_id))


@router.get(
    "/v1/files/{file_id}/content",
    responses=errors(404) | {200: {"content": {"application/jsonl": {"schema": {"type": "string"}}}}},
    response_class=Response,
    summary="Download a file",
)
async def content(file_id: str, caller: CallerDep, gateway: GatewayDep) -> Response:
    file = await gateway.files.find(caller, file_id)

    async def lines() -> AsyncGenerator[bytes]:
        async for _, line in gateway.files.lines(file.place, file.lines):
            if line is not None:
                yield line + b"\n"

    # With Content-Length a truncated download is not mistaken for a shorter file.
    length = {"Content-Length": str(file.bytes)}
    return StreamingResponse(lines(), media_type="application/jsonl", headers=length)


@router.delete("/v1/files/{file_id}", responses=errors(404, 409), summary="Delete a file")
async def delete(file_id: str, caller: CallerDep, gateway: GatewayDep) -> Deleted:
    """Refused while a batch uses it."""
    await gateway.files.delete(caller, file_id)
    return Deleted(id=file_id)


def _file_object(file: StoredFile) -> FileObject:
    return FileObject(
        id=file.id,
        bytes=file.bytes,
        created_at=file.created,
        filename=file.filename,
        purpose=file.purpose,
    )
