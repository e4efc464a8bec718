"""``/v1/time``: the clock that deadlines and timings are of."""

from fastapi import APIRouter

from ..access.dependencies import CallerDep, GatewayDep
from .schemas import TimeAnswer, errors

router = APIRouter(tags=["Requests"])


@router.get("/v1/time", responses=errors(), summary="The time by Redis's clock")
async def now(_caller: CallerDep, gateway: GatewayDep) -> TimeAnswer:
    """For clients whose own clock may be wrong, before they set a `deadline`."""
    return TimeAnswer(now=await gateway.clock.now_ms())
