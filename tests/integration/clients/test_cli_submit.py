"""``headrace submit``: a prompt to the terminal, and a file of requests to a file of results."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from fake_worker import FakeWorker, echo, serve
from typer.testing import CliRunner, Result
from waiting import eventually_sync

from headrace.clients.cli.submit import submit
from headrace.clients.protocol import ErrorInfo, Keys, Request

APP = typer.Typer()
APP.command()(submit)
Run = Callable[..., Result]


@pytest.fixture
def run(redis_url: str) -> Run:
    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(APP, ["--redis", redis_url, *arguments], input=stdin)

    return run


@pytest.fixture
def serving(worker: FakeWorker) -> Iterator[FakeWorker]:
    heartbeat(worker, "m")
    stop = serve(worker, echo)
    yield worker
    stop()


def heartbeat(worker: FakeWorker, model: str) -> None:
    key = worker.keys.worker(model, "gpu-0")
    worker.redis.hset(key, mapping={"model": model, "running": 0})
    worker.redis.expire(key, 60)


def records(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.usefixtures("serving")
def test_a_prompt_is_answered_by_the_only_model_there_is(run: Run) -> None:
    result = run("one two three", "--max-tokens", "2")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "one two \n", "")


@pytest.mark.usefixtures("serving")
def test_the_prompt_may_come_from_standard_input(run: Run) -> None:
    assert run(stdin="one two").stdout == "one two \n"
    assert run("-", stdin="three").stdout == "three \n"


@pytest.mark.usefixtures("serving")
def test_the_result_as_json(run: Run) -> None:
    (record,) = records(run("one two", "--json").stdout)
    assert (record["text"], record["tokens"], record["finish_reason"]) == ("one two ", [1000, 1001], "stop")
    assert record["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "cached_tokens": 0}
    assert set(record["timings"]) >= {"created", "started", "finished"}


def test_options_become_the_requests_fields(run: Run, worker: FakeWorker) -> None:
    seen: list[Request] = []

    def answer(worker: FakeWorker, request: Request) -> None:
        seen.append(request)
        echo(worker, request)

    stop = serve(worker, answer)
    drawing = ["--temperature", "0.5", "--top-p", "0.9", "--top-k", "40", "--min-p", "0.1", "--seed", "7"]
    sampling = [*drawing, "--stop", "a", "--stop", "b"]
    result = run("Hello", "--model", "m", *sampling, "--priority", "low", "--tenant", "acme")
    stop()
    assert result.exit_code == 0
    (request,) = seen
    assert (request.temperature, request.top_p, request.top_k, request.min_p) == (0.5, 0.9, 40, 0.1)
    assert (request.seed, request.stop, request.priority, request.tenant) == (7, ["a", "b"], "low", "acme")
    assert request.max_tokens == 256


def test_a_model_without_worker_is_waited_for_and_said_so(run: Run, worker: FakeWorker) -> None:
    stop = serve(worker, echo)
    result = run("Hello", "--model", "m")
    stop()
    assert (result.exit_code, result.stdout) == (0, "Hello \n")
    assert "no worker of m is alive yet" in result.stderr


def test_a_request_that_fails_exits_with_1(run: Run, worker: FakeWorker) -> None:
    def fail(worker: FakeWorker, request: Request) -> None:
        worker.emit(request.id, "Hal")
        worker.finish(request.id, "error", error=ErrorInfo("model_failed", "out of luck"))

    stop = serve(worker, fail)
    result = run("Hello", "--model", "m")
    stop()
    assert (result.exit_code, result.stdout) == (1, "Hal\n")
    assert "model_failed: out of luck" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["Hello"], "no worker is alive"),
        (["Hello", "--model", "m", "--max-tokens", "0"], "max_tokens"),
        (["Hello", "--model", "a b"], "model"),
        (["Hello", "--model", "m", "--file", "x"], "not both"),
        (["Hello", "--model", "m", "--output", "x"], "needs --file"),
        (["Hello", "--model", "m", "--redis", "http://x"], "redis://"),
        (["Hello", "--model", "m", "--namespace", "a b"], "namespace"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what(run: Run, arguments: list[str], problem: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert "Traceback" not in result.stderr


def test_several_models_must_be_chosen_from(run: Run, worker: FakeWorker) -> None:
    heartbeat(worker, "m")
    heartbeat(worker, "other")
    result = run("Hello")
    assert result.exit_code == 2
    assert "m, other" in result.stderr


def test_what_cannot_be_read_or_reached_exits_with_1(run: Run, tmp_path: Path) -> None:
    result = run("--model", "m", "--file", str(tmp_path / "none.jsonl"))
    assert result.exit_code == 1
    assert "none.jsonl" in result.stderr


@pytest.mark.usefixtures("serving")
def test_a_file_of_requests_becomes_a_file_of_results(run: Run, tmp_path: Path) -> None:
    requests = [{"prompt": f"number {n}", "metadata": {"n": n}, "id": f"r{n}"} for n in range(40)]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(json.dumps(request) for request in requests))
    result = run("--file", str(source), "--output", str(target), "--concurrency", "8", "--max-tokens", "1")
    assert (result.exit_code, result.stdout) == (0, "")
    found = sorted(records(target.read_text()), key=lambda record: record["line"])
    assert [record["line"] for record in found] == list(range(1, 41))
    assert [record["id"] for record in found] == [f"r{n}" for n in range(40)]
    assert [record["metadata"] for record in found] == [{"n": n} for n in range(40)]
    assert {record["text"] for record in found} == {"number "}


@pytest.mark.usefixtures("serving")
def test_a_line_that_is_wrong_is_answered_and_hinders_no_other(run: Run) -> None:
    lines = ['{"prompt": "one"}', "", "no json", "[1]", '{"prompt": "x", "max_tokns": 3}', '{"prompt": ""}']
    result = run("--file", "-", stdin="\n".join([*lines, '{"tokens": [1]}']))
    assert result.exit_code == 1
    found = {record["line"]: record for record in records(result.stdout)}
    assert set(found) == {1, 3, 4, 5, 6, 7}
    assert (found[1]["text"], found[7]["finish_reason"]) == ("one ", "stop")
    problems = {line: found[line]["error"]["message"] for line in (3, 4, 5, 6)}
    assert "not JSON" in problems[3]
    assert "must be a JSON object, got list" in problems[4]
    assert problems[5].startswith("max_tokns: is no field")
    assert problems[6].startswith("prompt: ")


def test_no_more_requests_are_under_way_than_asked_for(run: Run, worker: FakeWorker) -> None:
    most = 0

    def answer(worker: FakeWorker, request: Request) -> None:
        nonlocal most
        states = [worker.redis.hget(key, "status") for key in worker.redis.scan_iter("headrace:request:*")]
        most = max(most, sum(status != b"finished" for status in states))
        echo(worker, request)

    stop = serve(worker, answer)
    result = run("--file", "-", "--model", "m", "--concurrency", "3", stdin='{"prompt": "x"}\n' * 20)
    stop()
    assert (result.exit_code, len(records(result.stdout))) == (0, 20)
    assert 2 <= most <= 3


PROGRAM = """
import typer
from headrace.clients.cli.submit import submit
typer.run(submit)
"""


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )


def test_an_interrupt_cancels_the_request_and_exits_with_130(redis_url: str, worker: FakeWorker) -> None:
    process = start("--redis", redis_url, "--model", "m", "Hello")
    assert process.stdout is not None
    request = worker.take()
    worker.emit(request.id, "Hi\n")
    assert process.stdout.readline() == "Hi\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert worker.cancelled(request.id)


def test_an_interrupt_cancels_all_requests_of_a_file(
    redis_url: str, worker: FakeWorker, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "x"}\n' * 20)
    process = start("--redis", redis_url, "--model", "m", "--file", str(source), "--concurrency", "5")
    ids = [worker.take().id for _ in range(5)]
    channels = [Keys().channel(request_id) for request_id in ids]
    eventually_sync(lambda: all(count == 1 for _, count in worker.redis.pubsub_numsub(*channels)))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert all(worker.cancelled(request_id) for request_id in ids)


def test_output_that_nobody_reads_any_more_ends_the_request(redis_url: str, worker: FakeWorker) -> None:
    process = start("--redis", redis_url, "--model", "m", "Hello")
    assert process.stdout is not None
    request = worker.take()
    worker.emit(request.id, "Hi\n")
    assert process.stdout.readline() == "Hi\n"
    process.stdout.close()
    give_up = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < give_up:
        worker.emit(request.id, "more\n")
    assert process.wait(timeout=60) == 1
    assert worker.cancelled(request.id)
    process.stderr.close()


def test_bytes_that_are_no_text(redis_url: str, serving: FakeWorker, tmp_path: Path) -> None:
    """A line that is no UTF-8 fails by itself, and names its field; a prompt is refused by name."""
    del serving
    file = tmp_path / "requests.jsonl"
    file.write_bytes(b'{"prompt": "a\xff"}\n{"prompt": "b", "metadata": [NaN]}\n{"prompt": "c"}\n')
    command = [sys.executable, "-P", "-c", "from headrace.worker.cli import main; main()", "submit"]
    command += ["--redis", redis_url]
    done = subprocess.run([*command, "--file", str(file)], capture_output=True, check=False)
    records = {record["line"]: record for record in map(json.loads, done.stdout.splitlines())}
    told = {line: record["error"]["message"] for line, record in records.items() if "error" in record}
    assert told == {
        1: "prompt: must be valid Unicode, without lone surrogates",
        2: "metadata.0: must be a finite number",
    }
    assert records[3]["text"] == "c "
    for arguments, text in ((["a\udcff"], b""), (["-"], b"a\xff")):
        done = subprocess.run([*command, *arguments], input=text, capture_output=True, check=False)
        assert done.returncode == 2
        assert b"prompt: must be valid Unicode" in done.stderr.replace(b"\n", b" ")
        assert b"Traceback" not in done.stderr
