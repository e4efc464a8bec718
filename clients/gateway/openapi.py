"""The OpenAPI document: FastAPI's, without the answer that it adds and this gateway never gives."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Made once. A body that does not fit the schema is answered with 400, not with 422."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        for methods in document["paths"].values():
            for operation in methods.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema
