"""The engine: sequences in, steps out; no Redis and no device, so that a test can simulate a day of it."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..ageing import Ageing
from .capacity import Credits, admission_credits, fits
from .detokenizer import Detokenizer
from .errors import ENDS_PROCESS, DeviceFailure, OutOfMemory, WorkerFault
from .faults import Fault, Faults
from .iteration import Iteration, Launched, Runner
from .kv_cache import KVCache
from .output import SequenceOutput
from .scheduler import Scheduler
from .sequence import SampledToken, Sequence
from .snapshot import Snapshot, take_snapshot
from .step import FinishReason, Step

log = logging.getLogger(__name__)

_Launch = tuple[Iteration, Launched]
"""An iteration, or a part of one, under way."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Gauges, read between steps."""

    running: int
    waiting: int
    blocks_total: int
    blocks_free: int
    prefix_queried_tokens: int
    prefix_hit_tokens: int


class Engine:
    """Continuous batching over a runner.

    ``add``, ``cancel``, ``drop`` and ``credits`` are called between steps, ``step`` as long as ``has_work``.
    With ``overlap``, a step schedules and launches an iteration before it reads the tokens of the one
    before, so that an asynchronous device never waits for the host; a sequence that turns out to have ended
    then computes one token for nobody.
    """

    def __init__(
        self,
        runner: Runner,
        detokenizer: Detokenizer,
        *,
        num_blocks: int,
        block_size: int,
        max_batched_tokens: int,
        max_sequences: int,
        max_model_len: int,
        prefix_caching: bool = True,
        overlap: bool = False,
        ageing: Ageing | None = None,
    ) -> None:
        if not 2 <= max_model_len <= num_blocks * block_size:
            limit = num_blocks * block_size
            raise ValueError(
                f"max_model_len: must be from 2 to the cache's {limit} tokens, got {max_model_len}"
            )
        self.max_model_len = max_model_len
        self._runner = runner
        self._detokenizer = detokenizer
        self._cache = KVCache(num_blocks, block_size, prefix_caching=prefix_caching)
        self._scheduler = Scheduler(
            self._cache,
            max_batched_tokens=max_batched_tokens,
            max_sequences=max_sequences,
            ageing=ageing,
        )
        self._overlap = overlap
        self._launched: list[_Launch] = []
        self._faults = Faults()
        self._outputs: dict[str, SequenceOutput] = {}
        self._next = Step()
        self._typical_prompt = float(block_size)

    @property
    def has_work(self) -> bool:
        """Whether a step would compute or report anything."""
        return bool(self._outputs or self._launched or self._next.finished)

    @property
    def status(self) -> EngineStatus:
        stats = self._cache.prefix_stats
        return EngineStatus(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            blocks_total=self._cache.num_blocks,
            blocks_free=self._cache.num_free,
            prefix_queried_tokens=stats.queried,
            prefix_hit_tokens=stats.hit,
        )

    def snapshot(self) -> Snapshot:
        """What is under way; may be called while a step runs."""
        return take_snapshot(self._scheduler)

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Let sequences join at the next iteration. One with an id that is here already replaces it.

        A sequence with output goes on after it: that output, and ``logged_text``, count as delivered.

        Raises:
            ValueError: a prompt is empty, or leaves no room for a token.
        """
        for sequence in sequences:
            if not 0 < len(sequence.prompt) < self.max_model_len:
                limit = self.max_model_len - 1
                raise ValueError(f"prompt: must be 1 to {limit} tokens, got {len(sequence.prompt)}")
            self._forget(sequence.id)
            sequence.begin(self.max_model_len)
            self._typical_prompt += 0.1 * (len(sequence.prompt) - self._typical_prompt)
            output = self._outputs[sequence.id] = SequenceOutput.of(sequence, self._detokenizer)
            self._scheduler.add(sequence)
            try:
                output.resume(self._detokenizer)
            except BaseException as error:  # Rust code of the tokenizer panics with no Exception
                self._faults.note(output, "detokenizing its earlier output", error)
                self._end_faulty(self._next)
                continue
            if output.stream.stopped:
                self._finish(output, "stop", self._next)
            elif sequence.is_complete:
                self._finish(output, "length", self._next)

    def cancel(self, reasons: Mapping[str, FinishReason]) -> None:
        """End sequences with what they have; the next step reports them. Unknown ids are passed over."""
        for sequence_id, reason in reasons.items():
            if output := self._outputs.get(sequence_id):
                self._finish(output, reason, self._next)

    def drop(self, claims: Mapping[str, int]) -> None:
        """Forget sequences, given with their epoch, whose claim is over: nothing is reported of them."""
        for sequence_id, epoch in claims.items():
            output = self._outputs.get(sequence_id)
            if output is not None and output.sequence.epoch == epoch:
                self._forget(sequence_id)

    def credits(self, now: int) -> Credits:
        """How many more sequences of each class could be admitted next, at ``now`` (milliseconds)."""
        return admission_credits(self._scheduler, max(1, int(self._typical_prompt)), now)

    def fits(self, num_tokens: int, now: int) -> bool:
        """Whether the next iteration could admit a low sequence of ``num_tokens`` tokens at nobody's
        cost."""
        return num_tokens < self.max_model_len and fits(self._scheduler, num_tokens, now)

    @property
    def waiting(self) -> list[Sequence]:
        """Those not admitted, or preempted and not admitted again; the most urgent first."""
        return list(self._scheduler.waiting)

    def step(self) -> Step:
        """Schedule and launch an iteration; collect what was sampled, by it or (overlapping) by the last.

        An iteration for which the device lacks memory is taken back and tried once more at half its size. One
        that raises anything else but a failure of the device is run again in halves, until the sequences at
        fault are found; these end with an error, and the others get the output that they would have had.

        Raises:
            OutOfMemory: the device lacks memory for that, too.
            DeviceFailure
            WorkerFault: iterations fail whichever sequences they are of.
        """
        step, self._next = self._next, Step()
        launched = self._launch_next(step)
        due, self._launched = self._launched, launched
        if not self._overlap:
            due, self._launched = self._launched, []
        for iteration, part in due:
            self._collect(iteration, part, step)
        self._end_faulty(step)
        return step

    def check(self) -> None:
        """Assert the cache's invariants; for tests."""
        self._cache.check(self._scheduler.running)
        if any(sequence.block_table for sequence in self._scheduler.waiting):
            raise AssertionError("a waiting sequence holds blocks")

    def _launch_next(self, step: Step) -> list[_Launch]:
        iteration = self._schedule(step)
        try:
            return self._launch(iteration)
        except OutOfMemory as error:
            log.warning("out of device memory, trying half of %d tokens: %s", iteration.num_tokens, error)
        # Not while the exception is handled: its traceback keeps alive what the failed attempt had allocated.
        iteration = self._schedule(step, max(1, iteration.num_tokens // 2))
        return self._launch(iteration)

    def _schedule(self, step: Step, max_tokens: int | None = None) -> Iteration:
        iteration = self._scheduler.schedule(max_tokens)
        step.number = iteration.number
        step.chunks = iteration.chunks
        step.preempted += [sequence.id for sequence in iteration.preempted]
        return iteration

    def _launch(self, iteration: Iteration) -> list[_Launch]:
        if not iteration.chunks:
            return []
        try:
            return [self._launch_whole(iteration)]
        except OutOfMemory:
            self._scheduler.withdraw(iteration)
            raise
        except ENDS_PROCESS:
            raise
        except Exception as error:
            fault = error
        return self._launch_halves(iteration, fault)

    def _launch_whole(self, iteration: Iteration) -> _Launch:
        launched = self._runner.launch(iteration)
        self._faults.succeeded()
        block_size = self._cache.block_size
        for chunk in iteration.chunks:
            if chunk.start % block_size + chunk.length >= block_size:
                self._cache.publish(chunk.sequence)
        return iteration, launched

    def _launch_halves(self, iteration: Iteration, error: Exception) -> list[_Launch]:
        """Launch what can be launched of an iteration that raised ``error``, leaving out those at fault.

        Each sequence at fault costs about twice log2 of the batch in launches.

        Raises:
            DeviceFailure
            WorkerFault
        """
        chunks = iteration.chunks
        if len(chunks) == 1:
            chunk = chunks[0]
            if isinstance(error, OutOfMemory):
                raise WorkerFault(f"out of device memory for a single sequence: {error}") from error
            work = f"computing its tokens {chunk.start} to {chunk.start + chunk.length}"
            self._faults.note(self._outputs[chunk.sequence.id], work, error)
            return []
        launches: list[_Launch] = []
        for part in (chunks[: len(chunks) // 2], chunks[len(chunks) // 2 :]):
            half = Iteration(iteration.number, part)
            try:
                launches.append(self._launch_whole(half))
            except DeviceFailure:
                raise
            except Exception as half_error:
                launches += self._launch_halves(half, half_error)
        return launches

    def _end_faulty(self, step: Step) -> None:
        for fault in self._faults.take():
            output = fault.output
            if self._outputs.get(output.sequence.id) is output:  # else ended by a token still on its way
                self._finish(output, "error", step, fault)

    def _forget(self, sequence_id: str) -> None:
        if output := self._outputs.pop(sequence_id, None):
            self._scheduler.remove(output.sequence)

    def _collect(self, iteration: Iteration, launched: Launched, step: Step) -> None:
        tokens = iter(launched.collect())
        outputs = self._outputs
        for chunk in iteration.chunks:
            if not chunk.samples:
                continue
            sampled = next(tokens)
            sequence = chunk.sequence
            output = outputs.get(sequence.id)
            if output is None or output.sequence is not sequence:
                continue  # ended while the iteration was under way
            sequence.num_pending -= 1  # the host knows it now
            try:
                self._take(output, sampled, step)
            except BaseException as error:  # Rust code of the tokenizer panics with no Exception
                self._faults.note(output, f"adding token {sampled.token} to its output", error)

    def _take(self, output: SequenceOutput, sampled: SampledToken, step: Step) -> None:
        sequence = output.sequence
        if sampled.token in sequence.sampling.stop_tokens:
            self._finish(output, "stop", step)
            return
        output.append(sampled)
        if output.stream.stopped:
            self._finish(output, "stop", step)
        elif sequence.num_tokens - sequence.num_pending >= sequence.max_length:
            self._finish(output, "length", step)
        else:
            if self._overlap:  # the host learns only now what a full block holds
                self._cache.publish(sequence)
            step.deltas.append(output.take_delta())

    def _finish(
        self, output: SequenceOutput, reason: FinishReason, step: Step, fault: Fault | None = None
    ) -> None:
        sequence = output.sequence
        del self._outputs[sequence.id]
        self._scheduler.remove(sequence)
        try:
            output.flush()
        except BaseException as error:  # Rust code of the tokenizer panics with no Exception
            if isinstance(error, ENDS_PROCESS):
                raise
            fault = fault or Fault(output, "detokenizing the end of its output", error)
        if output.has_unsent:
            step.deltas.append(output.take_delta())
        if fault is None:
            step.finished.append(output.finished(reason))
            return
        fault.report(len(self._outputs))
        step.failed.append(sequence.id)
        step.finished.append(output.finished("error", "internal_error", fault.message))
