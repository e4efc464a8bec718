"""A backend that only enqueues installs neither torch nor anything of the command line."""

import subprocess
import sys

from headrace.clients import AsyncClient, AsyncHandle, Client, Handle
from headrace.clients.protocol import Request
from headrace.clients.submission import RequestFields


def test_importing_the_clients_imports_no_torch_and_no_command_line() -> None:
    program = """
import sys
import headrace.clients
print(sorted({"torch", "numpy", "transformers", "triton", "typer", "rich", "click"} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_both_clients_have_the_same_surface() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(AsyncClient) - {"aclose"} == public(Client) - {"close"}
    assert public(AsyncHandle) == public(Handle)


def test_submit_takes_every_field_of_a_request() -> None:
    assert {*RequestFields.__annotations__, "prompt", "v"} == set(Request.model_fields)
