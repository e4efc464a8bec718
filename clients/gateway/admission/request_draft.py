"""A request before it has an id."""

from dataclasses import dataclass
from typing import Final

from ...protocol import Message
from ...submission import RequestFields

_INT64: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RequestDraft:
    """The fields of a request without its id; a text prompt is in ``prompt``."""

    fields: RequestFields
    prompt: str | None = None

    @property
    def size(self) -> int:
        """Bytes of the prompt; a token id counts as four."""
        size = _size(self.prompt) + 4 * len(self.fields.get("tokens", ()))
        for message in self.fields.get("messages", ()):
            size += _size(message.content if isinstance(message, Message) else message.get("content"))
        return size

    def choice(self, index: int) -> "RequestDraft":
        """The draft of choice ``index``: with a seed, each choice samples with its own."""
        seed = self.fields.get("seed")
        if not index or seed is None:
            return self
        own = seed + index if seed + index <= _INT64 else seed - index
        return RequestDraft(self.fields | RequestFields(seed=own), self.prompt)


def _size(text: object) -> int:
    return len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else 0
