"""Print what a part of Headrace needs, for pip: ``requirements.py EXTRA,... [BUT ...]``."""

import re
import sys
import tomllib
from pathlib import Path

extras, *but = sys.argv[1:]
project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
optional = project["optional-dependencies"]
for requirement in project["dependencies"] + [one for extra in extras.split(",") for one in optional[extra]]:
    name = re.match(r"[\w.-]+", requirement)
    if name and name[0] not in {"headrace", *but}:
        sys.stdout.write(f"{requirement}\n")
