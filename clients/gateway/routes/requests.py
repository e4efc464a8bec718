"""``/v1/requests``: submit a request without waiting, read its state and result, cancel it."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...errors import HeadraceError
from ...protocol import RequestError
from ..access.dependencies import CallerDep, GatewayDep, own_handle
from ..access.tenant_ids import id_for, new_id
from ..errors import ApiError, unsupported
from ..native.job_body import JobBody, job_draft
from ..native.request_view import RequestView, view
from ..webhooks.signature import tenant_secret
from .idempotency import idempotency_key
from .schemas import TimeObject, WebhookSecret, errors

router = APIRouter(tags=["Requests"])


@router.post("/v1/requests", status_code=202, responses=errors(404, 408, 413, 429), summary="Submit a job")
async def submit(
    request: Request, response: Response, body: JobBody, caller: CallerDep, gateway: GatewayDep
) -> RequestView:
    """Responds at once, also while no worker is alive for a known model. `Location` is the request's URL."""
    draft = job_draft(body)
    key = await idempotency_key(request)
    request_id = new_id(caller.tenant) if key is None else id_for(caller.tenant, b"request", key)
    requests = await gateway.admission.admit(
        caller, body.model, [draft], request_id, request.state.trace, can_wait=True
    )
    request.state.request_id = request_id
    if body.webhook is not None:
        await gateway.webhooks.register(request_id, body.webhook, caller.tenant)
    try:
        (handle,) = await gateway.admission.submit(requests, repeatable=key is not None)
    except (ApiError, HeadraceError, RequestError):
        if body.webhook is not None and key is None:
            await gateway.webhooks.withdraw(request_id)
        raise
    gateway.metrics.submitted.labels(body.model).inc()
    response.headers["Location"] = f"/v1/requests/{request_id}"
    return await view(handle)


@router.get("/v1/webhook_secret", responses=errors(), summary="The signing secret of webhooks")
async def webhook_secret(caller: CallerDep, gateway: GatewayDep) -> WebhookSecret:
    master = gateway.settings.webhook_secret
    if master is None:
        raise unsupported("webhook", "This gateway sends no webhooks.")
    return WebhookSecret(secret=tenant_secret(master, caller.tenant))


@router.get("/v1/requests/{request_id}", responses=errors(404), summary="State, and result if ended")
async def read(request_id: str, caller: CallerDep, gateway: GatewayDep) -> RequestView:
    return await view(own_handle(gateway, caller, request_id))


@router.delete("/v1/requests/{request_id}", responses=errors(404), status_code=202, summary="Cancel")
async def cancel(request_id: str, caller: CallerDep, gateway: GatewayDep) -> RequestView:
    """Request cancellation, which takes effect at the next step; a finished request is unchanged."""
    handle = own_handle(gateway, caller, request_id)
    await handle.status()
    await handle.cancel()
    return await view(handle)


@router.get("/v1/time", responses=errors(), summary="The time by Redis's clock")
async def now(_caller: CallerDep, gateway: GatewayDep) -> TimeObject:
    """For clients whose clock may be wrong, to compute a `deadline`."""
    return TimeObject(now=await gateway.clock.now_ms())
