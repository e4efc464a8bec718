"""Every query of the dashboard and every alert rule, asked of a Prometheus that scrapes a worker at work."""

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
import yaml
from gateway_server import RunningGateway, running_gateway
from paced_worker import paced_worker
from prometheus_server import DEPLOY, INSTALLED, Prometheus, running_prometheus
from redis_servers import BINARIES, RedisServer, free_port, running
from tiny_models import save_tiny_model
from waiting import eventually_sync

pytestmark = pytest.mark.skipif(
    not INSTALLED, reason="needs the command prometheus, of Debian's package of that name"
)

DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "headrace.json").read_text())
RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
ALERTS = {rule["alert"]: rule["expr"] for group in RULES for rule in group["rules"]}
VARIABLES = {"$__rate_interval": "1m", "$model": ".*"}


def panels() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            assert "$" not in expression, "a variable that this test does not know"
            yield f"{panel['title']}: {target['expr']}", expression


def without_threshold(alert: str) -> str:
    expression, count = re.subn(r"\s[<>]=?\s[\d.]+$", "", ALERTS[alert])
    assert count, f"{alert} does not end in a threshold"
    return expression


@contextmanager
def load(gateway: RunningGateway) -> Iterator[None]:
    """Streams that come and go, some of them in error, until the block ends."""
    stop = threading.Event()

    def ask(number: int) -> None:
        body = {"model": "tiny", "prompt": "the mill " * (number + 1), "max_tokens": 20, "stream": True}
        with httpx.Client(base_url=gateway.url, timeout=60) as http:
            while not stop.is_set():
                http.post("/v1/completions", json=body)
                http.post("/v1/completions", json=body | {"prompt": "mill " * 500})
                http.post("/v1/completions", json=body | {"model": "nobody's"})
                stop.wait(0.3)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("observed")
    save_tiny_model("llama", folder / "model")
    port = free_port()
    with (
        running(RedisServer(next(iter(BINARIES)), folder / "server")) as server,
        paced_worker(
            server.url,
            folder / "model",
            max_sequences=4,
            max_batched_tokens=32,
            max_model_len=256,
            metrics_port=port,
        ) as worker,
        running_gateway(server.url) as gateway,
        load(gateway),
        running_prometheus(
            {"headrace-worker": f"127.0.0.1:{port}", "headrace-gateway": gateway.url.partition("//")[2]},
            folder,
        ) as prometheus,
    ):
        worker.pause = 0.005
        yield prometheus


def test_every_query_of_the_dashboard_has_data(prometheus: Prometheus) -> None:
    missing = dict(panels())
    assert len(missing) > 20

    def all_answer() -> bool:
        for name, expression in list(missing.items()):
            if prometheus.query(expression):
                del missing[name]
        return not missing

    try:
        eventually_sync(all_answer, 180)
    except AssertionError:
        pytest.fail("no data for\n" + "\n".join(sorted(missing)))


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_something_to_judge(prometheus: Prometheus, alert: str) -> None:
    assert eventually_sync(lambda: prometheus.query(without_threshold(alert)), 180)


def test_what_scales_workers_has_an_answer(prometheus: Prometheus) -> None:
    scaled = yaml.safe_load((DEPLOY / "kubernetes" / "keda" / "worker-scaling.yaml").read_text())
    for trigger in scaled["spec"]["triggers"]:
        query, count = re.subn(r'model="[^"]+"', 'model="tiny"', trigger["metadata"]["query"])
        assert count
        (value,) = eventually_sync(partial(prometheus.query, query), 180)
        assert 0 <= value <= 1000


def test_prometheus_evaluates_every_rule(prometheus: Prometheus) -> None:
    def evaluated() -> bool:
        rules = prometheus.rules()
        return len(rules) == len(ALERTS) and all(rule["health"] != "unknown" for rule in rules)

    eventually_sync(evaluated, 180)
    assert [
        (rule["name"], rule.get("lastError")) for rule in prometheus.rules() if rule["health"] != "ok"
    ] == []


def test_promtool_finds_nothing_wrong() -> None:
    for command in (
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "alerts.yml"],
        ["test", "rules", str(Path(__file__).parent / "alerts_test.yml")],
    ):
        result = subprocess.run(
            ["promtool", *command],
            cwd=DEPLOY / "prometheus",
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
