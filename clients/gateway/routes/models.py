"""OpenAI's ``/v1/models``: the models that live workers serve, and configured ones."""

from fastapi import APIRouter

from ..access.dependencies import CallerDep, GatewayDep
from ..errors import unknown_model
from ..gateway import Gateway
from .schemas import ModelList, ModelObject, errors

router = APIRouter(tags=["OpenAI"])


@router.get("/v1/models", responses=errors(), summary="List the models that are served")
async def models(_caller: CallerDep, gateway: GatewayDep) -> ModelList:
    return ModelList(data=[_model_object(name) for name in await _served(gateway)])


@router.get("/v1/models/{model:path}", responses=errors(404), summary="Look up one model")
async def model(model: str, _caller: CallerDep, gateway: GatewayDep) -> ModelObject:
    if model not in await _served(gateway):
        raise unknown_model(model)
    return _model_object(model)


async def _served(gateway: Gateway) -> list[str]:
    return sorted(
        {*gateway.settings.models, *(worker.model for worker in await gateway.worker_directory.alive())}
    )


def _model_object(name: str) -> ModelObject:
    return ModelObject(id=name, created=0, owned_by="headrace")
