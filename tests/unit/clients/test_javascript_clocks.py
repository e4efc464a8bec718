"""Neither the JavaScript client nor the page asks its host what time it is: moments are Redis's."""

import re
from pathlib import Path

import pytest

CLIENTS = Path(__file__).parents[3] / "clients"
SOURCES = [*CLIENTS.glob("js/src/**/*.ts"), *CLIENTS.glob("web/*.js")]
HOST_CLOCK = re.compile(r"\bDate\b|\btimeOrigin\b|\bTemporal\b|\bhrtime\b")


def test_there_are_sources() -> None:
    assert {source.parent.name for source in SOURCES} >= {"src", "protocol", "redis", "web"}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(CLIENTS)))
def test_moments_are_not_of_the_host(source: Path) -> None:
    assert not HOST_CLOCK.findall(source.read_text())
