"""Lua scripts, each one atomic step of the delivery protocol; its header says what it takes and returns."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from typing import Final

from ....clients import scripts as client_scripts


@dataclass(frozen=True, slots=True)
class Script:
    """A script's source, and the digest by which a server that has loaded it is asked to run it."""

    text: str
    digest: str

    @classmethod
    def read(cls, name: str) -> "Script":
        return cls.of(files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8"))

    @classmethod
    def of(cls, text: str) -> "Script":
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())

    def call(
        self, keys: Sequence[str], arguments: Sequence[bytes | str | float]
    ) -> tuple[bytes | str | float, ...]:
        return ("EVALSHA", self.digest, len(keys), *keys, *arguments)


TAKE: Final = Script.read("take")
RECLAIM: Final = Script.read("reclaim")
PRUNE: Final = Script.read("prune")
CLAIM: Final = Script.read("claim")
ON_QUEUE: Final = Script.read("on_queue")
DISOWN: Final = Script.read("disown")
PUT_BACK: Final = Script.read("put_back")
REPLACE: Final = Script.read("replace")
EMIT: Final = Script.read("emit")
FINISH: Final = Script.read("finish")
ACK: Final = Script.read("ack")
EXCUSE: Final = Script.read("excuse")
HEARTBEAT: Final = Script.read("heartbeat")
PRESENCE: Final = Script.read("presence")
RELEASE: Final = Script.read("release")
DEPTH: Final = Script.of(client_scripts.DEPTH.source)

_TEXTS: Final = {
    script.digest: script.text
    for script in (
        *(TAKE, RECLAIM, PRUNE, CLAIM, ON_QUEUE, DISOWN, PUT_BACK, REPLACE),
        *(EMIT, FINISH, ACK, EXCUSE),
        *(HEARTBEAT, PRESENCE, RELEASE, DEPTH),
    )
}


def in_full(call: tuple[bytes | str | float, ...]) -> tuple[bytes | str | float, ...]:
    """The same call for a server that does not know the script.

    ``EVAL`` rather than ``SCRIPT LOAD``, so that an account needs no right to manage scripts.
    """
    return ("EVAL", _TEXTS[str(call[1])], *call[2:])
