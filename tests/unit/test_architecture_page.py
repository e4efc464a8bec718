"""The walk through the code in docs/architecture.md names files and functions that exist, in few steps."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| (\d+) \| .+ \| `([^`]+)` `([^`]+)` \|$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE
)


def names_in(path: Path) -> set[str]:
    """Functions of a module, and methods with their class before them."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            members = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            names |= {f"{node.name}.{member.name}" for member in members}
    return names


def test_the_walk_has_at_most_twenty_steps() -> None:
    assert [int(number) for number, _, _ in ROWS] == list(range(1, len(ROWS) + 1))
    assert 10 <= len(ROWS) <= 20


def test_every_step_names_a_function_that_exists() -> None:
    missing = [f"{file} {function}" for _, file, function in ROWS if function not in names_in(ROOT / file)]
    assert missing == []
