"""Whether two compilations of a kernel compute something in the same way, to the order of their sums."""

import hashlib
import re

LOCATION = re.compile(r" loc\((?:[^()]|\([^()]*\))*\)")
VALUE = re.compile(r"%\w+(?::\d+)?(?:#\d+)?")
ALIAS = re.compile(r"^(#\w+) = (.*)$", re.MULTILINE)
DOT = re.compile(r"= \S*dot ")


def tail_digest(ttgir: str, loops: int) -> str:
    """A digest of the last ``loops`` loops that have matrix products, and of all that follows them.

    It is of Triton's code for one GPU, in which each tensor says how it lies in which threads' registers; the
    names of values and layouts, and where in the source they are from, are left out.
    """
    text = LOCATION.sub("", ttgir)
    layouts = dict(ALIAS.findall(text))
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    begins = [begin for begin, line in enumerate(lines) if " scf.for " in line and _has_product(lines, begin)]
    digest = hashlib.sha256()
    for line in lines[begins[-loops] :]:
        digest.update(_without_names(line, layouts).encode())
    return digest.hexdigest()


def _has_product(lines: list[str], begin: int) -> bool:
    indent = lines[begin][: len(lines[begin]) - len(lines[begin].lstrip())]
    for line in lines[begin + 1 :]:
        if DOT.search(line):
            return True
        if line.startswith(indent + "}"):
            return False
    return False


def _without_names(line: str, layouts: dict[str, str]) -> str:
    line = VALUE.sub("%", line)
    for _ in range(len(layouts)):  # a layout may be given by another
        named = re.sub(r"#\w+", lambda name: layouts.get(name[0], name[0]), line)
        if named == line:
            break
        line = named
    return line
