"""The OpenAPI document, and whether the gateway is what it says."""

import httpx
import pytest
import schemathesis
from fake_worker import FakeWorker
from gateway_server import RunningGateway
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


ENDLESS = {"/v1/system/events"}


def operations(http: httpx.Client) -> list[tuple[str, str]]:
    paths = http.get("/openapi.json").json()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def test_document(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    found = operations(http)
    assert ("POST", "/v1/chat/completions") in found
    for method, path in found:
        operation = document["paths"][path][method.lower()]
        assert operation["summary"]
        if path.startswith("/v1/"):
            assert operation["security"]
            errors = {status for status in operation["responses"] if status >= "400"}
            assert {"400", "401", "500", "503"} <= errors
            assert "422" not in errors


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_fuzz(gateway: RunningGateway, http: httpx.Client, model: FakeWorker, mode: GenerationMode) -> None:
    """Ten cases for each operation: data that fits the document, and data that does not."""
    del model
    schema = schemathesis.openapi.from_url(f"{gateway.url}/openapi.json")
    positive = mode is GenerationMode.POSITIVE
    examined = 0
    for method, path in operations(http):
        operation = schema[path][method]
        if path in ENDLESS or not (positive or operation.body or operation.query):
            continue
        examined += 1

        @settings(
            max_examples=10,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode), known=st.booleans())
        def examine(case: schemathesis.Case, known: bool) -> None:
            if known and positive and isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
                case.body["model"] = "m"
            case.call_and_validate(checks=CHECKS, timeout=30)

        examine()
    assert examined > 5
