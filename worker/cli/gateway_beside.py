"""A gateway beside a worker, in a thread of the same process."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

_LOOPBACK = "127.0.0.1"


@contextmanager
def gateway_beside(
    redis: str, namespace: str, model: str, port: int, *, tokenizer: Path | None = None, traces: bool = False
) -> Generator[str]:
    """Serve HTTP and the web page on the loopback interface for one model; gives the address.

    ``tokenizer`` is the model's ``tokenizer.json``, which gives tokens in log-probabilities their names.

    Raises:
        OSError: the port is taken.
        ValueError: settings that are out of range.
    """
    from ...clients.gateway.operation.serve import listen, make_server
    from ...clients.gateway.settings import GatewaySettings

    # A page in this machine's browser must not get in by a name of its own that points here.
    names = ("localhost", _LOOPBACK, "::1")
    settings = GatewaySettings(
        redis=redis,
        namespace=namespace,
        models=(model,),
        tokenizers=() if tokenizer is None else ((model, tokenizer),),
        allowed_hosts=names,
        traces=traces,
    )
    server = make_server(settings)
    with listen(_LOOPBACK, port, settings.write_timeout) as listener:
        thread = Thread(target=server.run, args=([listener],), name="gateway")
        thread.start()
        try:
            yield f"http://{_LOOPBACK}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
