"""One sequence's output on its way out of the engine: its text, and what has not been handed out yet."""

from dataclasses import dataclass, field

from .detokenizer import Detokenizer, TextStream
from .sequence import SampledToken, Sequence
from .step import Delta, Finished, FinishReason


@dataclass(slots=True)
class SequenceOutput:
    """Made with what earlier epochs delivered, which counts as sent; ``resume`` then continues its text."""

    sequence: Sequence
    stream: TextStream
    pieces: list[str] = field(default_factory=list[str])
    unsent_text: str = ""
    sent_tokens: int = 0
    sent_characters: int = 0

    @classmethod
    def of(cls, sequence: Sequence, detokenizer: Detokenizer) -> "SequenceOutput":
        return cls(
            sequence,
            detokenizer.stream([]),
            pieces=[sequence.logged_text],
            sent_tokens=len(sequence.output),
            sent_characters=len(sequence.logged_text),
        )

    @property
    def has_unsent(self) -> bool:
        return bool(self.unsent_text) or self.sent_tokens < len(self.sequence.output)

    def resume(self, detokenizer: Detokenizer) -> None:
        """Bring the text up to the sequence's output: what was held back of it, nothing delivered again."""
        sequence = self.sequence
        self.stream = stream = detokenizer.stream(sequence.prompt, sequence.sampling.stop)
        text = "".join(stream.push(token) for token in sequence.output)
        self._add_text(text[self.sent_characters :])

    def append(self, sampled: SampledToken) -> None:
        """Add one token; its text may follow with a later one."""
        sequence = self.sequence
        sequence.output.append(sampled.token)
        if sampled.logprob is not None:
            sequence.logprobs.append((sampled.logprob, sampled.top or []))
        self._add_text(self.stream.push(sampled.token))

    def flush(self) -> None:
        """Add the text that was held back: nothing follows."""
        self._add_text(self.stream.flush())

    def take_delta(self) -> Delta:
        """All that is unsent; it counts as sent from here on."""
        sequence = self.sequence
        tokens = sequence.output
        seq = self.sent_tokens
        if seq == len(tokens):
            # Text alone has no event of its own: the last token goes along once more, and readers drop it.
            seq -= 1
        delta = Delta(
            sequence.id,
            sequence.epoch,
            seq,
            self.sent_characters,
            tokens[seq:],
            self.unsent_text,
            sequence.logprobs[seq:] if sequence.sampling.logprobs is not None else None,
        )
        self.sent_tokens = len(tokens)
        self.sent_characters += len(self.unsent_text)
        self.unsent_text = ""
        return delta

    def finished(
        self, reason: FinishReason, error_code: str | None = None, error_message: str | None = None
    ) -> Finished:
        """The sequence's end, with all of its output."""
        sequence = self.sequence
        return Finished(
            sequence_id=sequence.id,
            epoch=sequence.epoch,
            reason=reason,
            tokens=sequence.output,
            text="".join(self.pieces),
            logprobs=sequence.logprobs if sequence.sampling.logprobs is not None else None,
            prompt_tokens=len(sequence.prompt),
            cached_tokens=sequence.num_cached,
            error_code=error_code,
            error_message=error_message,
        )

    def _add_text(self, text: str) -> None:
        if text:
            self.pieces.append(text)
            self.unsent_text += text
