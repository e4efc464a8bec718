"""Lines of batches, read from whatever was uploaded."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.clients.gateway.batches.lines import drafts_of, parse_line, split_lines
from headrace.clients.gateway.errors import ApiError


def line(**changes: object) -> bytes:
    body = {"model": "m", "prompt": "x"}
    return json.dumps(
        {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body, **changes}
    ).encode()


@given(st.binary() | st.text().map(str.encode) | st.recursive(
    st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_upload_is_accepted_or_refused_with_a_reason(content: bytes) -> None:
    try:
        split_lines(content, 100)
    except ApiError as error:
        assert error.status in (400, 413)
        assert error.param == "file"


FIELDS = st.sampled_from(["model", "prompt", "n", "stop", "seed", "stream", "messages"])
VALUES = st.none() | st.integers() | st.text() | st.lists(st.text() | st.integers()) | st.floats()


@given(st.dictionaries(FIELDS, VALUES))
def test_any_body_is_accepted_or_refused_with_a_reason(body: dict[str, object]) -> None:
    for url in ("/v1/completions", "/v1/chat/completions"):
        try:
            drafts_of(parse_line(line(url=url, body=body), "line"), 16)
        except ApiError as error:
            assert error.status == 400
            assert error.param


def test_each_prompt_and_choice_is_a_request_and_draws_for_itself() -> None:
    body = {"model": "m", "prompt": ["x", "y"], "n": 2, "seed": 7}
    _, drafts = drafts_of(parse_line(line(body=body), "line"), 16)
    assert [(draft.prompt, draft.fields.get("seed")) for draft in drafts] == [
        ("x", 7),
        ("x", 8),
        ("y", 7),
        ("y", 8),
    ]


def test_the_highest_seed() -> None:
    body = {"model": "m", "prompt": "x", "n": 3, "seed": (1 << 63) - 1}
    _, drafts = drafts_of(parse_line(line(body=body), "line"), 16)
    seeds = [draft.fields.get("seed") for draft in drafts]
    assert len(set(seeds)) == 3
    assert all(isinstance(seed, int) and seed < 1 << 63 for seed in seeds)


@pytest.mark.parametrize("changes", [{"custom_id": ""}, {"custom_id": 7}, {"method": "PUT"}, {"url": "/"}])
def test_bad_lines(changes: dict[str, object]) -> None:
    with pytest.raises(ApiError, match="line 1"):
        split_lines(line(**changes), 10)
