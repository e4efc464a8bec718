"""``/v1/requests``: a request's state, its result, its end."""

from fastapi import APIRouter

from ..access.dependencies import CallerDep, GatewayDep, own_handle
from ..native.request_view import RequestView, view
from .schemas import errors

router = APIRouter(tags=["Requests"])


@router.get("/v1/requests/{request_id}", responses=errors(404), summary="State, and result if ended")
async def read(request_id: str, caller: CallerDep, gateway: GatewayDep) -> RequestView:
    return await view(own_handle(gateway, caller, request_id))


@router.delete("/v1/requests/{request_id}", responses=errors(404), status_code=202, summary="Cancel")
async def cancel(request_id: str, caller: CallerDep, gateway: GatewayDep) -> RequestView:
    """Ask for the request's end. It comes within a moment; a request that has ended stays as it is."""
    handle = own_handle(gateway, caller, request_id)
    await handle.status()
    await handle.cancel()
    return await view(handle)
