"""The gateway's components, which its routes share. It holds no state that must survive a restart."""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from ..async_client import AsyncClient
from .access.api_keys import KeyRing
from .admission.admission import Admission
from .admission.worker_directory import WorkerDirectory
from .batches.files import Files
from .batches.line_runner import LineRunner
from .batches.runner import BatchRunner
from .batches.store import Batch, BatchStore
from .openai.vocabulary import Vocabulary, load_vocabularies
from .operation.metrics import Metrics
from .operation.shutdown import InFlightRequests
from .operation.system_view import SystemWatcher
from .redis_clock import RedisClock
from .settings import GatewaySettings
from .streams.slots import StreamSlots
from .webhooks.delivery import Webhooks


@dataclass(frozen=True, slots=True)
class Gateway:
    settings: GatewaySettings
    client: AsyncClient
    clock: RedisClock
    keys: KeyRing | None
    """None: no authentication; every caller is an administrator."""
    worker_directory: WorkerDirectory
    admission: Admission
    slots: StreamSlots
    in_flight: InFlightRequests
    metrics: Metrics
    webhooks: Webhooks
    files: Files
    batch_store: BatchStore
    batch_runner: BatchRunner
    system: SystemWatcher
    vocabularies: Mapping[str, Vocabulary]
    """Of the models whose tokenizer is known."""


def make_gateway(settings: GatewaySettings) -> Gateway:
    """Create the components; connections are made on first use.

    Raises:
        ValueError, OSError: the API key file or a tokenizer cannot be loaded.
        ImportError: tokenizers are configured and the package ``tokenizers`` is not installed.
    """
    client = AsyncClient(
        settings.redis,
        namespace=settings.namespace,
        queue_limit=settings.queue_limit,
        patience=settings.patience,
    )
    clock = RedisClock(client.connection)
    vocabularies = load_vocabularies(dict(settings.tokenizers))
    worker_directory = WorkerDirectory(client.connection, client.keys)
    admission = Admission(settings, client, worker_directory)
    slots = StreamSlots(settings.max_streams)
    metrics = Metrics(slots)
    files = Files(settings, client.connection)
    batch_store = BatchStore(settings, client.connection, files, clock)

    def line_runner(batch: Batch) -> LineRunner:
        return LineRunner(batch, admission, clock, settings.default_max_tokens, vocabularies)

    return Gateway(
        settings=settings,
        client=client,
        clock=clock,
        keys=None if settings.keys_file is None else KeyRing(settings.keys_file),
        worker_directory=worker_directory,
        admission=admission,
        slots=slots,
        in_flight=InFlightRequests(),
        metrics=metrics,
        webhooks=Webhooks(settings, client, clock, metrics),
        files=files,
        batch_store=batch_store,
        batch_runner=BatchRunner(
            settings, client.connection, files, batch_store, clock, line_runner, metrics
        ),
        system=SystemWatcher(client, worker_directory, slots),
        vocabularies=vocabularies,
    )


def gateway_of(connection: HTTPConnection) -> Gateway:
    return connection.app.state.gateway
