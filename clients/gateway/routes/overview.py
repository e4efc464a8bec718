"""``/v1/overview``: queues, workers and what runs, for operators."""

from fastapi import APIRouter

from ..access import AdminDep, GatewayDep
from ..overview_view import OverviewView, overview_view
from .schemas import errors

router = APIRouter(tags=["Operation"])


@router.get("/v1/overview", responses=errors(403), summary="Queues, workers and what runs")
async def overview(_admin: AdminDep, gateway: GatewayDep) -> OverviewView:
    """Of all tenants, so the key must have `admin = true`. New once a second at most."""
    return overview_view(await gateway.watch.overview())
