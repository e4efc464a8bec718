"""Log lines as whoever searches them finds them."""

import json
import logging

import pytest

from headrace.worker.logs import JsonFormatter, TextFormatter, about


def test_a_line_about_a_request_names_it_in_text_and_in_json(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.worker.telemetry")
    about(logging.getLogger("headrace.worker.telemetry"), "r-1").info(
        "%s after %d s", "stop", 2, extra={"trace": "00-ab"}
    )
    (record,) = caplog.records
    assert TextFormatter().format(record).endswith("INFO    telemetry request r-1: stop after 2 s")
    line = json.loads(JsonFormatter().format(record))
    assert (line["request"], line["trace"]) == ("r-1", "00-ab")
    assert line["message"] == "request r-1: stop after 2 s"
