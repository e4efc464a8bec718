"""Everything between Redis and the engine: intake, claims, leases, output, resume, drain."""

from .broker import Broker, open_broker
from .control import Interrupts
from .counters import Counters
from .entries import Claim, Resumed
from .settings import BrokerSettings

__all__ = ["Broker", "BrokerSettings", "Claim", "Counters", "Interrupts", "Resumed", "open_broker"]
