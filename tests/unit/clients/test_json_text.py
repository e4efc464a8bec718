"""Lines of JSON that no reader breaks in two."""

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.clients.cli.record import as_line
from headrace.clients.gateway.json_body import compact
from headrace.clients.gateway.operation import logs as gateway_logs
from headrace.clients.json_text import one_line
from headrace.worker import logs as worker_logs

CHARACTERS = "".join(map(chr, range(0x3000)))


@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_one_line_and_the_same_value(value: Any) -> None:
    text = one_line(value)
    assert len(text.splitlines()) == 1
    assert json.loads(text) == value


@pytest.mark.parametrize(
    "write",
    [
        lambda text: compact({"text": text}).decode(),
        lambda text: as_line({"text": text}),
        *(
            lambda text, logs=logs: logs.JsonFormatter().format(logging.makeLogRecord({"msg": text}))
            for logs in (gateway_logs, worker_logs)
        ),
    ],
    ids=["answers and batch files", "--file", "gateway log", "worker log"],
)
def test_every_line_that_is_written(write: Any) -> None:
    (line,) = write(CHARACTERS).splitlines()
    assert CHARACTERS in json.loads(line).values()
    assert "水" in write("水"), "all else stays readable"
