"""OpenAI's ``/v1/models``: what is served at the moment."""

from fastapi import APIRouter

from ..access.dependencies import CallerDep, GatewayDep
from ..errors import unknown_model
from ..gateway import Gateway
from .schemas import ModelAnswer, ModelList, errors

router = APIRouter(tags=["OpenAI"])


@router.get("/v1/models", responses=errors(), summary="List the models that are served")
async def models(_caller: CallerDep, gateway: GatewayDep) -> ModelList:
    return ModelList(data=[_answer(name) for name in await _served(gateway)])


@router.get("/v1/models/{model:path}", responses=errors(404), summary="Look up one model")
async def model(model: str, _caller: CallerDep, gateway: GatewayDep) -> ModelAnswer:
    if model not in await _served(gateway):
        raise unknown_model(model)
    return _answer(model)


async def _served(gateway: Gateway) -> list[str]:
    return sorted(
        {*gateway.settings.models, *(worker.model for worker in await gateway.worker_directory.alive())}
    )


def _answer(name: str) -> ModelAnswer:
    return ModelAnswer(id=name, created=0, owned_by="headrace")
