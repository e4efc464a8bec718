"""``headrace gateway`` and ``headrace gateway-key``."""

import logging
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..async_client import DEFAULT_URL
from ..protocol import Priority

_LOOPBACK = ("localhost", "127.0.0.1", "::1")

HTTP, ACCESS, LIMITS, HOOKS, OPERATION = "HTTP", "Access", "Limits", "Webhooks", "Operation"


def gateway(
    redis: Annotated[
        str,
        typer.Option(
            help="URL of the Redis or Valkey server.", envvar="HEADRACE_REDIS", rich_help_panel=OPERATION
        ),
    ] = DEFAULT_URL,
    namespace: Annotated[
        str,
        typer.Option(
            help="Prefix of all Redis keys.", envvar="HEADRACE_NAMESPACE", rich_help_panel=OPERATION
        ),
    ] = "headrace",
    host: Annotated[
        str, typer.Option(help="Address to listen on.", envvar="HEADRACE_GATEWAY_HOST", rich_help_panel=HTTP)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            help="Port to listen on; 0 for any free port.",
            envvar="HEADRACE_GATEWAY_PORT",
            rich_help_panel=HTTP,
            min=0,
            max=65535,
        ),
    ] = 8000,
    keys_file: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of API keys, made with [bold]headrace gateway-key[/]. Reloaded when it changes.",
            envvar="HEADRACE_GATEWAY_KEYS_FILE",
            rich_help_panel=ACCESS,
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    no_keys: Annotated[
        bool,
        typer.Option(
            "--no-keys",
            help="Serve without API keys on an address that other machines can reach.",
            envvar="HEADRACE_GATEWAY_NO_KEYS",
            rich_help_panel=ACCESS,
        ),
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Allowed Host header; repeatable. Without API keys, the default is the loopback names of "
            "this machine, unless --no-keys is given.",
            envvar="HEADRACE_GATEWAY_ALLOWED_HOSTS",
            rich_help_panel=ACCESS,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="Allowed CORS origin for browsers; repeatable.",
            envvar="HEADRACE_GATEWAY_CORS_ORIGINS",
            rich_help_panel=ACCESS,
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Served model name for which jobs are accepted even while no worker is alive; repeatable.",
            envvar="HEADRACE_GATEWAY_MODELS",
            rich_help_panel=OPERATION,
        ),
    ] = None,
    tokenizer: Annotated[
        list[str] | None,
        typer.Option(
            help="MODEL=FILE: a model's tokenizer.json, for the text and bytes of tokens in "
            "log-probabilities; repeatable. Needs the tokenizers package.",
            envvar="HEADRACE_GATEWAY_TOKENIZERS",
            rich_help_panel=OPERATION,
        ),
    ] = None,
    queue_limit: Annotated[
        int,
        typer.Option(
            help="Maximum number of queued requests per model.",
            envvar="HEADRACE_GATEWAY_QUEUE_LIMIT",
            rich_help_panel=LIMITS,
            min=1,
        ),
    ] = 10_000,
    max_body: Annotated[
        int,
        typer.Option(
            help="Maximum size of a request body, in bytes.",
            envvar="HEADRACE_GATEWAY_MAX_BODY",
            rich_help_panel=LIMITS,
            min=1,
        ),
    ] = 4 << 20,
    max_prompt: Annotated[
        int,
        typer.Option(
            help="Maximum size of all prompts of one HTTP request, in bytes.",
            envvar="HEADRACE_GATEWAY_MAX_PROMPT",
            rich_help_panel=LIMITS,
            min=1,
        ),
    ] = 1 << 20,
    max_streams: Annotated[
        int,
        typer.Option(
            help="Maximum number of concurrent streams.",
            envvar="HEADRACE_GATEWAY_MAX_STREAMS",
            rich_help_panel=LIMITS,
            min=1,
        ),
    ] = 12_000,
    max_upload: Annotated[
        int,
        typer.Option(
            help="Maximum size of an uploaded file, in bytes.",
            envvar="HEADRACE_GATEWAY_MAX_UPLOAD",
            rich_help_panel=LIMITS,
            min=1,
        ),
    ] = 32 << 20,
    webhook_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="Allowed webhook origin, https://host\\[:port]; repeatable. Default: none.",
            envvar="HEADRACE_GATEWAY_WEBHOOK_ORIGINS",
            rich_help_panel=HOOKS,
        ),
    ] = None,
    webhook_secret: Annotated[
        str | None,
        typer.Option(
            help="Secret that webhook signing keys derive from (16 characters or more); use the variable.",
            envvar="HEADRACE_GATEWAY_WEBHOOK_SECRET",
            rich_help_panel=HOOKS,
            show_default=False,
        ),
    ] = None,
    heartbeat: Annotated[
        float,
        typer.Option(
            help="Interval of keep-alive comments on an idle stream, in seconds.",
            envvar="HEADRACE_GATEWAY_HEARTBEAT",
            rich_help_panel=HTTP,
            min=0.1,
        ),
    ] = 15.0,
    grace: Annotated[
        float,
        typer.Option(
            help="Seconds that open streams and responses have to finish after SIGTERM.",
            envvar="HEADRACE_GATEWAY_GRACE",
            rich_help_panel=OPERATION,
            min=1,
        ),
    ] = 20.0,
    traces: Annotated[
        bool,
        typer.Option(
            "--traces",
            help="Export OpenTelemetry traces, configured by the OTEL_* variables.",
            envvar="HEADRACE_TRACES",
            rich_help_panel=OPERATION,
        ),
    ] = False,
    log_format: Annotated[
        Literal["text", "json"],
        typer.Option(
            help="Log format: text or json.", envvar="HEADRACE_LOG_FORMAT", rich_help_panel=OPERATION
        ),
    ] = "text",
) -> None:
    """Serve OpenAI's API and resumable streams over HTTP, in front of the queue.

    It keeps nothing that a restart could lose, and any number can run side by side. A stream that breaks off
    is continued at any of them.

    Try it: [bold]curl localhost:8000/v1/completions -H 'content-type: application/json' -d
    '{"model": "...", "prompt": "The mill"}'[/]
    """
    from ..gateway.operation.serve import run_gateway
    from ..gateway.settings import GatewaySettings

    local = host in _LOOPBACK
    if keys_file is None and not no_keys and not local:
        raise typer.BadParameter(
            f"at {host} others can reach the gateway: give --keys-file, or --no-keys to let everybody in"
        )
    names = tuple(allowed_host or ())
    if keys_file is None and not no_keys and not names:
        # A page in this machine's browser must not get in by a name of its own that points here.
        names = _LOOPBACK
    try:
        settings = GatewaySettings(
            redis=redis,
            namespace=namespace,
            keys_file=keys_file,
            models=tuple(model or ()),
            tokenizers=tuple(_tokenizer(item) for item in tokenizer or ()),
            queue_limit=queue_limit,
            cors_origins=tuple(cors_origin or ()),
            allowed_hosts=names,
            max_body=max_body,
            max_prompt=max_prompt,
            max_streams=max_streams,
            max_upload=max_upload,
            heartbeat=heartbeat,
            webhook_origins=tuple(webhook_origin or ()),
            webhook_secret=webhook_secret,
            drain_grace=grace,
            traces=traces,
        )
        run_gateway(settings, host, port, log_format)
    except (ValueError, OSError, ImportError) as error:
        logging.getLogger(__name__).debug("cannot start", exc_info=error)
        raise typer.BadParameter(str(error)) from error


def gateway_key(
    tenant: Annotated[
        str, typer.Argument(help="Tenant of the key. Tenants cannot see each other's requests.")
    ],
    rate: Annotated[
        int | None, typer.Option(help="Rate limit in requests per minute. Default: unlimited.", min=1)
    ] = None,
    burst: Annotated[int, typer.Option(help="Requests that may exceed the rate at once.", min=1)] = 60,
    priority: Annotated[
        Priority, typer.Option(help="Highest priority that its requests may have.")
    ] = "normal",
    streams: Annotated[
        int, typer.Option(help="Maximum number of concurrent streams on one gateway.", min=1)
    ] = 100,
    admin: Annotated[
        bool,
        typer.Option(
            "--admin",
            help="Allow the monitoring routes: queues, workers and running requests of all tenants.",
        ),
    ] = False,
) -> None:
    """Make an API key for the gateway.

    The key goes to standard error, once: it is kept nowhere. What goes to standard output belongs into the
    gateway's file: [bold]headrace gateway-key acme >> keys.toml[/]
    """
    from ..gateway.access.api_keys import make_key

    try:
        key, table = make_key(tenant, rate=rate, burst=burst, priority=priority, streams=streams, admin=admin)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(key, err=True)
    typer.echo(table)


def _tokenizer(item: str) -> tuple[str, Path]:
    model, separator, path = item.partition("=")
    if not separator or not Path(path).is_file():
        raise ValueError(f"tokenizer: must be MODEL=FILE with a file that exists, got {item!r}")
    return model, Path(path)
