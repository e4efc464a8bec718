"""compose.yaml and the Dockerfile: what they set exists, and nothing is open that need not be."""

import re
from pathlib import Path
from typing import Any

import yaml
from read_variables import variables_of

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "compose.yaml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
COMMANDS = {"worker": "worker", "worker-gpu": "worker", "gateway": "gateway"}


def test_every_container_is_confined() -> None:
    for name, service in SERVICES.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_only_what_people_look_at_is_published_and_only_to_this_machine() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"gateway", "prometheus", "grafana"}
    assert all(
        port.startswith("${HEADRACE_BIND:-127.0.0.1}:") for ports in published.values() for port in ports
    )


def test_any_number_of_workers_fits() -> None:
    for name in ("worker", "worker-gpu"):
        assert not {"container_name", "hostname", "ports"} & set(SERVICES[name])
        assert "HEADRACE_NAME" not in SERVICES[name]["environment"]


def test_every_setting_is_one_that_the_command_reads() -> None:
    for name, command in COMMANDS.items():
        settings = set(SERVICES[name]["environment"]) - {"HEADRACE_ACCOUNT", "HF_TOKEN"}
        assert settings <= variables_of(command), name
    images = re.findall(r"\b(HEADRACE_\w+)=", (ROOT / "Dockerfile").read_text())
    assert images
    assert set(images) - {"HEADRACE_CACHE"} <= variables_of("worker") | variables_of("gateway")


def test_every_account_has_a_file() -> None:
    accounts = {file.stem for file in (ROOT / "deploy" / "acl").glob("*.acl")}
    used = {
        one["environment"]["HEADRACE_ACCOUNT"]
        for one in SERVICES.values()
        if "environment" in one and "HEADRACE_ACCOUNT" in one["environment"]
    }
    assert used <= accounts
    mounts = {volume.rpartition("/")[2] for volume in SERVICES["valkey"]["volumes"] if "-account:" in volume}
    assert mounts == accounts, "a password would be made up anew at each start"


def test_every_variable_is_documented() -> None:
    documented = (ROOT / "docs" / "compose.md").read_text()
    missing = {name for name in re.findall(r"\$\{(\w+):", TEXT) if f"`{name}`" not in documented}
    assert missing <= {"PROMETHEUS_PORT", "GRAFANA_PORT"}
