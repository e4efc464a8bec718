"""The engine: sequences in, steps out; no Redis and no device, so that a test can simulate a day of it."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..ageing import PRIORITY_CLASSES, Ageing
from .detokenizer import Detokenizer, TextStream
from .errors import ENDS_PROCESS, DeviceFailure, OutOfMemory, WorkerFault
from .iteration import Iteration, Launched, Runner
from .kv_cache import KVCache
from .scheduler import Scheduler
from .sequence import SampledToken, Sequence
from .snapshot import Snapshot, take_snapshot
from .step import Delta, Finished, FinishReason, Step

log = logging.getLogger(__name__)

MAX_FAULTS_IN_A_ROW = 8
"""Sequences that fail one after the other, each computed alone, with no launch between them that succeeds:
from this many on it is not the sequences' fault."""


@dataclass(slots=True)
class _Output:
    """What has become of one sequence's output: the text so far, and what has not been handed out."""

    sequence: Sequence
    stream: TextStream
    pieces: list[str] = field(default_factory=list[str])
    unsent_text: str = ""
    sent_tokens: int = 0
    sent_characters: int = 0

    def add_text(self, text: str) -> None:
        if text:
            self.pieces.append(text)
            self.unsent_text += text


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

    ``add``, ``cancel``, ``drop`` and ``room`` are called between steps, ``step`` as long as ``has_work``.
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
        self._faults: list[tuple[_Output, str, BaseException]] = []
        self._faults_in_a_row = 0
        self._outputs: dict[str, _Output] = {}
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
            num_prompt = len(sequence.prompt)
            sequence.num_resumed = len(sequence.output)
            sequence.num_tokens = num_prompt + len(sequence.output)
            sequence.max_length = min(num_prompt + sequence.sampling.max_tokens, self.max_model_len)
            self._typical_prompt += 0.1 * (len(sequence.prompt) - self._typical_prompt)
            output = self._outputs[sequence.id] = self._new_output(sequence)
            self._scheduler.add(sequence)
            try:
                self._resume(output)
            except BaseException as error:  # Rust code of the tokenizer panics with no Exception
                self._fault(output, "detokenizing its earlier output", error)
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

    def room(self, now: int) -> tuple[int, int, int]:
        """How many more sequences of each class (see ``Ageing``) could be admitted next, at ``now`` (ms).

        More than that would wait here while another worker might serve it.
        """
        self._scheduler.now = max(self._scheduler.now, now)
        slots = self._scheduler.max_sequences - len(self._scheduler.running)
        if not slots:
            return 0, 0, 0
        free = self._unclaimed_blocks()
        rooms = [self._room(priority, now, slots, free) for priority in range(PRIORITY_CLASSES)]
        return rooms[0], rooms[1], rooms[2]

    def fits(self, num_tokens: int, now: int) -> bool:
        """Whether the next iteration could admit a low sequence of ``num_tokens`` known tokens at nobody's
        cost."""
        scheduler, cache = self._scheduler, self._cache
        if scheduler.waiting or len(scheduler.running) >= scheduler.max_sequences:
            return False
        if num_tokens >= self.max_model_len:
            return False
        lowest = scheduler.ageing.virtual_arrival(PRIORITY_CLASSES - 1, now)
        headroom = scheduler.headroom(scheduler.running, lowest)
        return cache.blocks_for(num_tokens) + headroom <= self._unclaimed_blocks()

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
        self._faults_in_a_row = 0
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
            self._fault(self._outputs[chunk.sequence.id], work, error)
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

    def _fault(self, output: _Output, work: str, error: BaseException) -> None:
        """Note that ``work`` on a sequence raised ``error``; ``_end_faulty`` ends it.

        Raises:
            WorkerFault: too many have done so in a row.
            what ``error`` is, if that is never a sequence's fault.
        """
        if isinstance(error, ENDS_PROCESS):
            raise error
        self._faults_in_a_row += 1
        if self._faults_in_a_row >= MAX_FAULTS_IN_A_ROW:
            raise WorkerFault(
                f"{self._faults_in_a_row} requests in a row failed, each computed alone; of the last one, "
                f"{work} raised {_in_a_line(error)}"
            ) from error
        self._faults.append((output, work, error))

    def _end_faulty(self, step: Step) -> None:
        faults, self._faults = self._faults, []
        for output, work, error in faults:
            sequence_id = output.sequence.id
            if self._outputs.get(sequence_id) is not output:
                continue  # ended by the token that was still on its way
            self._report_fault(sequence_id, work, error)
            step.failed.append(sequence_id)
            self._finish(output, "error", step, "internal_error", f"{work} raised {type(error).__name__}")

    def _report_fault(self, sequence_id: str, work: str, error: BaseException) -> None:
        about = {"request": sequence_id}
        others = len(self._outputs) - 1
        line = "request %s: ended with an error: %s raised %s; %d other requests go on"
        log.error(line, sequence_id, work, _in_a_line(error), others, extra=about)
        log.debug("request %s: traceback", sequence_id, exc_info=error, extra=about)

    def _forget(self, sequence_id: str) -> None:
        if output := self._outputs.pop(sequence_id, None):
            self._scheduler.remove(output.sequence)

    def _room(self, priority: int, now: int, slots: int, free: int) -> int:
        scheduler, cache = self._scheduler, self._cache
        virtual_arrival = scheduler.ageing.virtual_arrival(priority, now)
        if scheduler.waiting and scheduler.waiting[0].virtual_arrival <= virtual_arrival:
            return 0
        typical = max(1, int(self._typical_prompt))
        blocks = cache.blocks_for(typical)
        room = min(slots, -(-scheduler.max_batched_tokens // typical))
        least = 0 if scheduler.running else 1
        staying = scheduler.running.copy()
        displaceable = scheduler.displaceable(virtual_arrival)
        while True:
            spare = free - scheduler.headroom(staying, virtual_arrival)
            # Each newcomer but the last also has to leave a block to spare for itself.
            fitting = max(least, (spare + 1) // (blocks + 1))
            if fitting >= room or not displaceable:
                return min(room, fitting)
            displaced = displaceable.pop()
            staying.remove(displaced)
            free += cache.exclusive_blocks(displaced)

    def _unclaimed_blocks(self) -> int:
        """Free blocks, less those that running sequences need for what they know already."""
        cache = self._cache
        missing = sum(
            cache.blocks_for(sequence.num_tokens) - len(sequence.block_table)
            for sequence in self._scheduler.running
        )
        return cache.num_free - missing

    def _new_output(self, sequence: Sequence) -> _Output:
        output = _Output(sequence, self._detokenizer.stream([]))
        output.pieces.append(sequence.logged_text)
        output.sent_tokens = len(sequence.output)
        output.sent_characters = len(sequence.logged_text)
        return output

    def _resume(self, output: _Output) -> None:
        """Bring the text up to the sequence's output: what was held back of it, nothing delivered again."""
        sequence = output.sequence
        output.stream = stream = self._detokenizer.stream(sequence.prompt, sequence.sampling.stop)
        text = "".join(stream.push(token) for token in sequence.output)
        output.add_text(text[output.sent_characters :])

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
            sequence.num_pending -= 1
            try:
                self._take(output, sampled, step)
            except BaseException as error:  # Rust code of the tokenizer panics with no Exception
                self._fault(output, f"adding token {sampled.token} to its output", error)

    def _take(self, output: _Output, sampled: SampledToken, step: Step) -> None:
        sequence = output.sequence
        token = sampled.token
        if token in sequence.sampling.stop_tokens:
            self._finish(output, "stop", step)
            return
        sequence.output.append(token)
        if sampled.logprob is not None:
            sequence.logprobs.append((sampled.logprob, sampled.top or []))
        stream = output.stream
        output.add_text(stream.push(token))
        if stream.stopped:
            self._finish(output, "stop", step)
        elif sequence.num_tokens - sequence.num_pending >= sequence.max_length:
            self._finish(output, "length", step)
        else:
            if self._overlap:  # the host learns only now what a full block holds
                self._cache.publish(sequence)
            step.deltas.append(_delta(output))

    def _finish(
        self,
        output: _Output,
        reason: FinishReason,
        step: Step,
        error_code: str | None = None,
        error_message: str | None = None,
    ) -> None:
        sequence = output.sequence
        del self._outputs[sequence.id]
        self._scheduler.remove(sequence)
        try:
            output.add_text(output.stream.flush())
        except BaseException as error:  # Rust code of the tokenizer panics with no Exception
            if isinstance(error, ENDS_PROCESS):
                raise
            if reason != "error":
                work = "detokenizing the end of its output"
                self._report_fault(sequence.id, work, error)
                step.failed.append(sequence.id)
                reason, error_code = "error", "internal_error"
                error_message = f"{work} raised {type(error).__name__}"
        if output.unsent_text or output.sent_tokens < len(sequence.output):
            step.deltas.append(_delta(output))
        step.finished.append(
            Finished(
                sequence_id=sequence.id,
                epoch=sequence.epoch,
                reason=reason,
                tokens=sequence.output,
                text="".join(output.pieces),
                logprobs=sequence.logprobs if sequence.sampling.logprobs is not None else None,
                prompt_tokens=len(sequence.prompt),
                cached_tokens=sequence.num_cached,
                error_code=error_code,
                error_message=error_message,
            )
        )


def _delta(output: _Output) -> Delta:
    """All that is unsent; it counts as sent from here on."""
    sequence = output.sequence
    tokens = sequence.output
    seq = output.sent_tokens
    if seq == len(tokens):
        # Text alone has no event of its own: the last token goes along once more, and readers drop it.
        seq -= 1
    delta = Delta(
        sequence.id,
        sequence.epoch,
        seq,
        output.sent_characters,
        tokens[seq:],
        output.unsent_text,
        sequence.logprobs[seq:] if sequence.sampling.logprobs is not None else None,
    )
    output.sent_tokens = len(tokens)
    output.sent_characters += len(output.unsent_text)
    output.unsent_text = ""
    return delta


def _in_a_line(error: BaseException) -> str:
    message = str(error).partition("\n")[0][:300]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
