"""Every setting of a worker: its meaning, unit and default, from a flag or a ``HEADRACE_*`` variable."""

import re
import socket
import uuid
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from .ageing import Ageing

_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\Z", re.IGNORECASE)

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KVCacheDtype = Literal["auto", "fp8"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a setting is for, and the heading it stands under in ``--help``."""

    help: str
    group: str
    minimum: float | None = None


MODEL = "Model"
QUEUE = "Queue"
BATCH = "Batch and cache"
DELIVERY = "Delivery"
OPERATION = "Operation"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One worker's settings. A flag is its field's name with dashes, a variable its name in capitals."""

    model: Annotated[str, Setting("Folder or Hugging Face id of a transformers decoder model.", MODEL)]
    served_name: Annotated[
        str | None,
        Setting("Model name that requests use. Default: the folder's or repository's name.", MODEL),
    ] = None
    device: Annotated[str, Setting("auto, cpu, cuda or cuda:N. auto is cuda if there is one.", MODEL)] = (
        "auto"
    )
    dtype: Annotated[
        Dtype,
        Setting(
            "Data type of weights and activations. auto: the checkpoint's on a GPU, the faster one on a CPU.",
            MODEL,
        ),
    ] = "auto"
    trust_remote_code: Annotated[
        bool, Setting("Allow Python code from the model's repository to run.", MODEL)
    ] = False

    redis: Annotated[str, Setting("URL of the Redis or Valkey server.", QUEUE)] = "redis://localhost:6379/0"
    namespace: Annotated[str, Setting("Prefix of all Redis keys and channels.", QUEUE)] = "headrace"
    redis_timeout: Annotated[
        float, Setting("Timeout of a Redis command, in seconds; the connection is then replaced.", QUEUE, 0.1)
    ] = 5.0
    name: Annotated[
        str | None,
        Setting(
            "Worker name, unique among the model's workers. Default: host name and a random part.", QUEUE
        ),
    ] = None

    kv_cache_memory: Annotated[
        str | None,
        Setting("Size of the KV cache, such as 512MiB or 8GiB. Default: what fits and can be used.", BATCH),
    ] = None
    kv_cache_dtype: Annotated[
        KVCacheDtype,
        Setting(
            "Data type of the KV cache. auto: the model's; fp8 (e4m3, measured scales): half the memory, "
            "log-probabilities change by about a tenth.",
            BATCH,
        ),
    ] = "auto"
    gpu_memory_utilization: Annotated[
        float,
        Setting(
            "Fraction of the GPU's memory, up to 1, for weights, activations and KV cache together.",
            BATCH,
            0.01,
        ),
    ] = 0.9
    graphs: Annotated[bool, Setting("Capture decode steps as CUDA graphs at start. GPUs only.", BATCH)] = True
    block_size: Annotated[int, Setting("Tokens per block of the KV cache.", BATCH, 1)] = 16
    max_batched_tokens: Annotated[
        int, Setting("Maximum number of tokens per iteration (token budget).", BATCH, 1)
    ] = 1024
    max_sequences: Annotated[int, Setting("Maximum number of sequences in the batch.", BATCH, 1)] = 64
    max_model_len: Annotated[
        int | None,
        Setting(
            "Maximum context length, prompt and output. Default: what the model and the cache allow.",
            BATCH,
            2,
        ),
    ] = None
    ageing: Annotated[
        float,
        Setting("Seconds since its submission for which a request rises by one priority.", BATCH, 0.001),
    ] = Ageing().ms / 1000
    prefix_caching: Annotated[
        bool, Setting("Prefix caching: share KV cache blocks between equal prefixes.", BATCH)
    ] = True

    lease: Annotated[
        float,
        Setting(
            "Lease in seconds: without a heartbeat for that long, other workers take over the requests.",
            DELIVERY,
            0.1,
        ),
    ] = 15.0
    max_attempts: Annotated[
        int,
        Setting("Claims that may end without a result before a request becomes a dead letter.", DELIVERY, 1),
    ] = 5
    result_ttl: Annotated[
        float, Setting("Seconds for which the result of a finished request is kept.", DELIVERY, 1)
    ] = 3600.0
    grace: Annotated[
        float,
        Setting(
            "Seconds to finish running requests after SIGTERM; the rest is handed back to the queue.",
            DELIVERY,
            0,
        ),
    ] = 30.0

    outbox_memory: Annotated[
        str,
        Setting(
            "Buffer for output while Redis is unreachable, such as 32MiB; decoding pauses when it is full.",
            DELIVERY,
        ),
    ] = "32MiB"

    metrics_port: Annotated[
        int | None, Setting("Port of the metrics and health endpoints. Default: none.", OPERATION, 0)
    ] = None
    metrics_host: Annotated[str, Setting("Address of the metrics port.", OPERATION)] = "127.0.0.1"
    log_format: Annotated[LogFormat, Setting("Log format: text or json.", OPERATION)] = "text"
    log_level: Annotated[LogLevel, Setting("Minimum log level.", OPERATION)] = "info"
    traces: Annotated[
        bool,
        Setting("Export OpenTelemetry traces, configured by the OTEL_* variables.", OPERATION),
    ] = False

    def __post_init__(self) -> None:
        for name, setting in settings_of(type(self)).items():
            value = getattr(self, name)
            if setting.minimum is not None and value is not None and value < setting.minimum:
                raise ValueError(f"{name}: must be at least {setting.minimum:g}, got {value}")
        if self.kv_cache_memory is not None:
            parse_size("kv_cache_memory", self.kv_cache_memory)
        if self.gpu_memory_utilization > 1:
            raise ValueError(f"gpu_memory_utilization: must be at most 1, got {self.gpu_memory_utilization}")
        parse_size("outbox_memory", self.outbox_memory)


def settings_of(config: type) -> dict[str, Setting]:
    """Each field's Setting, in the order of declaration."""
    return {name: annotation.__metadata__[0] for name, annotation in config.__annotations__.items()}


def parse_size(field: str, text: str) -> int:
    """Bytes in a size such as ``512MiB``; units are powers of 1024.

    Raises:
        ValueError
    """
    match = _SIZE.match(text.strip())
    if not match or not (size := int(float(match[1]) * _SIZES[match[2].lower()])):
        raise ValueError(f"{field}: must be a size such as 512MiB or 8GiB, got {text!r}")
    return size


def make_worker_name() -> str:
    """Host and a random part: a restarted worker is another worker, with leases of its own."""
    return f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
