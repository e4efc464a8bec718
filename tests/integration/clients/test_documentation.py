"""The examples in docs/clients.md, run as they stand but for the address."""

import re
from pathlib import Path

import pytest
from fake_worker import FakeWorker, echo, serve

PAGE = Path(__file__).parents[3] / "docs" / "clients.md"
SECTIONS = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
EXAMPLES = {
    heading: code
    for heading, section in SECTIONS
    for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL)
}
OUTPUT = {
    "Asynchronous": r"Why is the sky blue\? \nstop: 5 tokens\n",
    "Blocking": r"Why is the sky blue\?  stop 0\.\d+\n",
    "From another process": r"(queued|running|finished)\n(Delta\(.*\)\n)*Done\(seq=5, .*\)\n",
    "Several, all or none": r"Why is the sky blue\? \nWhy is grass green\? \n",
    "A full queue": "",
    "Cancelling": r"cancelled .*\n|.*story\. \n",
}


def test_every_example_is_run() -> None:
    assert set(EXAMPLES) == set(OUTPUT)


@pytest.mark.parametrize("heading", EXAMPLES)
def test_an_example_does_what_it_says(
    heading: str, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = FakeWorker(redis_url, "gemma3-270m")
    stop = serve(worker, echo)
    try:
        code = EXAMPLES[heading].replace("redis://localhost:6379/0", redis_url)
        exec(compile(code, heading, "exec"), {"__name__": "__main__"})  # noqa: S102  it is our own page
    finally:
        stop()
        worker.close()
    assert re.fullmatch(OUTPUT[heading], capsys.readouterr().out)
