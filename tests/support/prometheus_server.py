"""A Prometheus that tests start, with the project's own rules."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from redis_servers import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
INSTALLED = shutil.which("prometheus") is not None


@dataclass(frozen=True)
class Prometheus:
    """A server that answers at ``url``."""

    url: str

    def query(self, expression: str) -> list[float]:
        """The values that ``expression`` has now, NaN left out.

        Raises:
            AssertionError: it is not valid.
        """
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=30).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        values = [float(series["value"][1]) for series in answer["data"]["result"]]
        return [value for value in values if value == value]

    def rules(self) -> list[dict[str, Any]]:
        groups = httpx.get(f"{self.url}/api/v1/rules", timeout=30).json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@contextmanager
def running_prometheus(targets: Mapping[str, str], folder: Path) -> Iterator[Prometheus]:
    """Scrapes ``targets``, an address for each job of the project's configuration, every second."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
    jobs = [job["job_name"] for job in config["scrape_configs"]]
    assert sorted(jobs) == sorted(targets), "a job has no target"
    config["scrape_configs"] = [
        {"job_name": job, "static_configs": [{"targets": [targets[job]]}]} for job in jobs
    ]
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(config))
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_until_ready(f"http://127.0.0.1:{port}", process, folder / "prometheus.log")
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up and process.poll() is None:
        try:
            if httpx.get(f"{url}/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"Prometheus does not start:\n{log.read_text(errors='replace')[-2000:]}")
