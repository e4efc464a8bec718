"""Webhook delivery, at least once: a POST when a request has ended.

A webhook is in Redis from before its request is enqueued until the receiver has responded, so it survives the
loss of a gateway or a worker.
"""

import json
import logging
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import httpx

from ...async_client import AsyncClient
from ...errors import EventsLost, UnknownRequest
from ...jitter import jittered
from ..errors import ApiError, api_error_of, unavailable
from ..json_body import compact
from ..native.request_view import view
from ..operation.metrics import Metrics
from ..redis_clock import RedisClock
from ..redis_keys import GatewayKeys
from ..schedules.schedule import LeasedTask, Schedule
from ..schedules.work_loop import run_due_tasks
from ..settings import GatewaySettings
from .signature import signed_headers
from .url import checked_url

LIMIT: Final = 100_000
"""Most pending webhooks."""
ATTEMPTS: Final = 9
_TTL: Final = 25 * 3600.0
_LEASE: Final = 30.0
_AT_ONCE: Final = 32
_TIMEOUT: Final = 10.0
_FIRST_POLL, _LONGEST_POLL = 0.5, 15.0
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 600.0
_SUBMISSION: Final = 60.0
"""Seconds after which a request that does not exist is taken as never submitted."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Hook:
    url: str
    tenant: str | None
    created: float
    """Unix seconds by Redis's clock."""
    seen: bool = False
    """Whether the request has been found at least once."""
    attempts: int = 0

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class Webhooks:
    """Raises ``Unavailable`` where it talks to Redis."""

    def __init__(
        self, settings: GatewaySettings, client: AsyncClient, clock: RedisClock, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._client = client
        self._metrics = metrics
        keys = GatewayKeys(settings.namespace)
        self._schedule = Schedule(client.connection, keys, "webhooks", limit=LIMIT, ttl=_TTL)

    async def register(self, request_id: str, url: str, tenant: str | None) -> None:
        """Register a webhook; called before the request is submitted.

        Raises:
            ApiError: 400 the URL is not allowed, 503 too many are pending.
        """
        checked_url(url, self._settings.webhook_origins)
        hook = _Hook(url, tenant, await self._clock.now())
        if not await self._schedule.add(request_id, hook.encode(), _FIRST_POLL):
            raise unavailable("Too many webhooks are pending.", "too_many_webhooks", 30)

    async def withdraw(self, request_id: str) -> None:
        """Remove a webhook whose request was not submitted."""
        await self._schedule.drop(request_id)

    async def run(self) -> None:
        """Deliver due webhooks; returns only where no origin is allowed."""
        if not self._settings.webhook_origins:
            return
        # Redirects and environment proxies would lead to origins that were not checked.
        async with httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=False, trust_env=False) as http:
            await run_due_tasks(self._schedule, _LEASE, _AT_ONCE, lambda leased: self._handle(http, leased))

    async def _handle(self, http: httpx.AsyncClient, leased: LeasedTask) -> None:
        hook = _Hook(**json.loads(leased.task))
        try:
            state = await view(self._client.attach(leased.id))
            request: dict[str, Any] = state.model_dump(mode="json")
            ended = state.status == "finished"
        except (UnknownRequest, EventsLost) as error:
            if not hook.seen and await self._clock.now() - hook.created < _SUBMISSION:
                await self._schedule.postpone(leased, _FIRST_POLL, leased.task)
                return
            if not hook.seen:
                await self._schedule.finish(leased)
                return
            lost = api_error_of(error)
            request, ended = {"id": leased.id, "error": lost.body["error"] if lost else None}, True
        if not ended:
            age = await self._clock.now() - hook.created
            poll = min(_LONGEST_POLL, max(_FIRST_POLL, age / 10))
            await self._schedule.postpone(leased, poll, replace(hook, seen=True).encode())
        elif await self._deliver(http, leased.id, hook, request):
            await self._schedule.finish(leased)
        else:
            await self._retry_later(leased, replace(hook, seen=True, attempts=hook.attempts + 1))

    async def _deliver(
        self, http: httpx.AsyncClient, request_id: str, hook: _Hook, request: dict[str, Any]
    ) -> bool:
        """Whether delivery is over: accepted, or not to be retried."""
        body = compact({"type": "request.finished", "id": request_id, "request": request})
        master = self._settings.webhook_secret or ""
        headers = signed_headers(master, hook.tenant, request_id, await self._clock.now(), body)
        headers["content-type"] = "application/json"
        try:
            url = checked_url(hook.url, self._settings.webhook_origins)
            async with http.stream("POST", url, content=body, headers=headers) as response:
                status = response.status_code
        except ApiError:
            self._metrics.webhooks.labels("not_allowed").inc()
            return True
        except httpx.HTTPError as error:
            self._metrics.webhooks.labels("unreachable").inc()
            _log.warning(
                "webhook of request %s: not delivered, will be retried: %s", request_id, type(error).__name__
            )
            return False
        received = 200 <= status < 300
        self._metrics.webhooks.labels("delivered" if received else "refused").inc()
        if not received:
            _log.warning("webhook of request %s: the receiver responded %d", request_id, status)
        return received or status == 410

    async def _retry_later(self, leased: LeasedTask, hook: _Hook) -> None:
        if hook.attempts >= ATTEMPTS:
            self._metrics.webhooks.labels("given_up").inc()
            _log.error("webhook of request %s: dropped after %d attempts", leased.id, hook.attempts)
            await self._schedule.finish(leased)
            return
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (hook.attempts - 1))
        await self._schedule.postpone(leased, jittered(pause), hook.encode())
