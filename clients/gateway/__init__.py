"""The HTTP gateway: OpenAI's API and resumable streams in front of the queue. Imports no torch."""

from .app import create_app
from .settings import GatewaySettings

__all__ = ["GatewaySettings", "create_app"]
