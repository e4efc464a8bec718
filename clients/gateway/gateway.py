"""One gateway: what its routes work with. Nothing in it would be missed after a restart."""

from dataclasses import dataclass

from starlette.requests import HTTPConnection

from ..async_client import AsyncClient
from .api_keys import KeyRing
from .fleet import Fleet
from .intake import Intake
from .metrics import Metrics
from .settings import GatewaySettings
from .slots import StreamSlots
from .token_names import TokenName, by_id, load_names
from .webhooks import Webhooks


@dataclass(frozen=True, slots=True)
class Gateway:
    settings: GatewaySettings
    client: AsyncClient
    keys: KeyRing | None
    """None: everybody may do everything."""
    fleet: Fleet
    intake: Intake
    slots: StreamSlots
    metrics: Metrics
    token_names: dict[str, TokenName]
    webhooks: Webhooks

    def token_name(self, model: str) -> TokenName:
        return self.token_names.get(model, by_id)


def make_gateway(settings: GatewaySettings) -> Gateway:
    """Connects when first used.

    Raises:
        ValueError, OSError: the file of API keys or a tokenizer cannot be used.
        ImportError: there are tokenizers and the package is not installed.
    """
    client = AsyncClient(
        settings.redis,
        namespace=settings.namespace,
        queue_limit=settings.queue_limit,
        patience=settings.patience,
    )
    fleet = Fleet(client.connection, client.keys)
    slots = StreamSlots(settings.max_streams)
    metrics = Metrics(slots)
    return Gateway(
        settings=settings,
        client=client,
        keys=None if settings.keys_file is None else KeyRing(settings.keys_file),
        fleet=fleet,
        intake=Intake(settings, client, fleet),
        slots=slots,
        metrics=metrics,
        token_names=load_names(dict(settings.tokenizers)),
        webhooks=Webhooks(settings, client, metrics),
    )


def gateway_of(connection: HTTPConnection) -> Gateway:
    return connection.app.state.gateway
