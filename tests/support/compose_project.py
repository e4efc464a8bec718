"""The project's compose.yaml, started for a test on whatever engine this machine has."""

import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from docker.errors import DockerException
from docker.models.containers import Container
from testcontainers.compose import DockerCompose
from testcontainers.core.docker_client import DockerClient

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class ComposeProject:
    """A project that is up."""

    name: str
    command: list[str]
    engine: DockerClient

    def run(self, *arguments: str) -> str:
        """What a command of Compose says. Raises ``AssertionError`` with it where it fails."""
        result = subprocess.run(
            [*self.command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"{arguments}: {result.stdout[-3000:]}{result.stderr[-3000:]}"
        return result.stdout

    def containers(self, service: str | None = None) -> list[Container]:
        """Those that run."""
        labels = [f"com.docker.compose.project={self.name}"]
        if service is not None:
            labels.append(f"com.docker.compose.service={service}")
        return self.engine.client.containers.list(filters={"label": labels})

    def container(self, service: str) -> Container:
        (container,) = self.containers(service)
        return container


def compose_command() -> list[str]:
    """Compose for the engine that answers. Skips the test where there is none."""
    try:
        DockerClient().client.ping()
    except DockerException as error:
        pytest.skip(f"no container engine answers: {str(error)[:120]}")
    if shutil.which("docker"):
        plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
        if plugin.returncode == 0:
            return ["docker", "compose"]
    if shutil.which("podman-compose"):
        return ["podman-compose"]
    pytest.skip("neither docker compose nor podman-compose is installed")


@contextmanager
def compose_project(environment: Mapping[str, str]) -> Iterator[ComposeProject]:
    """Builds and starts compose.yaml as a project of its own; everything of it is removed at the end."""
    command = compose_command()
    name = f"headrace-test-{secrets.token_hex(4)}"
    compose = DockerCompose(ROOT, build=True, wait=False)
    compose.compose_command_property = command
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in {"COMPOSE_PROJECT_NAME": name, "HEADRACE_TAG": "test", **environment}.items():
            patch.setenv(variable, value)
        patch.delenv("HEADRACE_MODEL", raising=False)
        project = ComposeProject(name, command, DockerClient())
        try:
            compose.start()
            yield project
        except BaseException:
            for container in project.containers():
                print(f"--- {container.name}\n{container.logs(tail=40).decode(errors='replace')}")
            raise
        finally:
            # Twice: to podman-compose, workers beyond the first are orphans, whose volumes it frees too late.
            for _ in range(2):
                project.run("down", "--volumes", "--remove-orphans", "--timeout", "10")
        assert project.containers() == []
