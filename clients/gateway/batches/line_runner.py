"""Execution of one line of a batch, from its requests to the line of its result."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import anyio

from ...async_client import AsyncHandle
from ...errors import HeadraceError
from ...protocol import RequestError
from ...result import Result
from ...submission import RequestFields
from ..access.api_keys import Caller
from ..access.tenant_ids import id_for, part_of
from ..admission.admission import Admission, cancel_all
from ..admission.request_draft import RequestDraft
from ..errors import ApiError, api_error_of, internal_error, invalid
from ..openai.chat_format import ChatFormat
from ..openai.completion import Completion, results_of
from ..openai.completion_format import CompletionFormat
from ..openai.vocabulary import Vocabulary
from ..redis_clock import RedisClock
from .lines import CHAT, drafts_of, error_line, output_line, parse_line
from .store import Batch

_ATTEMPTS: Final = 5
"""For transient errors; waiting for queue capacity and for workers has no limit."""
_PAUSE: Final = 2.0
_RETRIED_UNTIL_EXPIRY: Final = frozenset({429, 503})

_log = logging.getLogger(__name__)


class LineRunner:
    """Runs lines of one batch, which can be cancelled together."""

    def __init__(
        self,
        batch: Batch,
        admission: Admission,
        clock: RedisClock,
        default_max_tokens: int,
        vocabularies: Mapping[str, Vocabulary],
    ) -> None:
        self._batch = batch
        # Batches have low priority, whatever their API key allows.
        self._caller = Caller("batch", batch.tenant, "low", admin=False)
        self._admission = admission
        self._clock = clock
        self._default_max_tokens = default_max_tokens
        self._vocabularies = vocabularies
        self._running: set[AsyncHandle] = set()
        self._cancelled = False
        self._latest = batch.expires * 1000

    def line_id(self, number: int) -> str:
        """The id of a line's request, and of its result."""
        return id_for(self._batch.tenant, b"line", self._batch.id.encode(), str(number).encode())

    async def cancel(self) -> None:
        """Cancel all running requests; their lines get no result. Raises ``Unavailable``."""
        self._cancelled = True
        await cancel_all(list(self._running))

    async def cancel_line(self, number: int, line: bytes) -> None:
        """Cancel the requests of a line that another gateway may have submitted."""
        try:
            _, drafts = drafts_of(parse_line(line, "line"), self._default_max_tokens)
        except ApiError:
            return
        parts = [part_of(self.line_id(number), index) for index in range(len(drafts))]
        await cancel_all([self._admission.attach(part) for part in parts])

    async def run(self, number: int, line: bytes) -> tuple[bool, bytes] | None:
        """Whether line ``number`` succeeded, and its line of the output or error file.

        None where it has no result: it was cancelled, or the batch's completion window closed.
        """
        line_id = self.line_id(number)
        custom_id = ""
        try:
            parsed = parse_line(line, "line")
            custom_id = parsed.custom_id
            if parsed.url != self._batch.endpoint:
                raise invalid(f"url: must be the batch's endpoint, {self._batch.endpoint}", "url")
            body, drafts = drafts_of(parsed, self._default_max_tokens)
            results = await self._results(line_id, body.model, drafts)
            if results is None:
                return None
            vocabulary = self._vocabularies.get(body.model)
            form = ChatFormat(vocabulary) if parsed.url == CHAT else CompletionFormat(vocabulary)
            now = await self._clock.now()
            completed = Completion(line_id, body.model, now, form, body.n or 1).whole(results)
            return True, output_line(line_id, custom_id, line_id, completed)
        except (ApiError, HeadraceError, RequestError) as error:
            failure = api_error_of(error)
        except Exception as error:
            _log.exception("batch %s, line %d: %s", self._batch.id, number, type(error).__name__)
            failure = None
        failure = failure or internal_error()
        return False, error_line(line_id, custom_id, line_id, failure)

    async def _results(self, line_id: str, model: str, drafts: Sequence[RequestDraft]) -> list[Result] | None:
        attempt = 0
        while not self._cancelled:
            try:
                await self._admission.check_model(model, can_wait=True)
                requests = self._admission.prepare(
                    self._caller, [self._limited(draft) for draft in drafts], line_id
                )
                handles = await self._admission.submit(requests, repeatable=True)
                self._running.update(handles)
                try:
                    if self._cancelled:
                        await cancel_all(handles)
                    results = await results_of(handles)
                    return None if any(map(self._has_no_result, drafts, results)) else results
                finally:
                    self._running.difference_update(handles)
            except (ApiError, HeadraceError) as error:
                failure = api_error_of(error)
                if failure is None or failure.status not in _RETRIED_UNTIL_EXPIRY:
                    attempt += 1
                    if isinstance(error, ApiError) or attempt >= _ATTEMPTS:
                        raise
                await anyio.sleep(_PAUSE if failure is None else failure.retry_after or _PAUSE)

        return None

    def _has_no_result(self, draft: RequestDraft, result: Result) -> bool:
        if result.finish_reason == "cancelled":
            return self._cancelled
        return result.finish_reason == "expired" and self._deadline(draft) == self._latest

    def _deadline(self, draft: RequestDraft) -> int:
        own = draft.fields.get("deadline")
        return self._latest if own is None else min(own, self._latest)

    def _limited(self, draft: RequestDraft) -> RequestDraft:
        return RequestDraft(draft.fields | RequestFields(deadline=self._deadline(draft)), draft.prompt)
