"""Lua scripts that clients run. Each touches the keys of one hash tag only, and takes time from Redis."""

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any

import redis.asyncio
from redis.exceptions import NoScriptError


class Script:
    """A script of a package, run by its digest; sent in full to a server that does not know it yet.

    ``EVAL`` rather than ``SCRIPT LOAD``, so that an account needs no right to manage scripts.
    """

    def __init__(self, name: str, package: str = __name__) -> None:
        self.source = files(package).joinpath(f"{name}.lua").read_text()
        self._digest = sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    async def run(
        self, server: redis.asyncio.Redis, keys: Sequence[str], arguments: Sequence[str | bytes | int]
    ) -> Any:
        try:
            return await server.evalsha(self._digest, len(keys), *keys, *arguments)
        except NoScriptError:
            return await server.eval(self.source, len(keys), *keys, *arguments)


SUBMIT = Script("submit")
RECORD = Script("record")
WITHDRAW = Script("withdraw")
ENQUEUE = Script("enqueue")
CANCEL = Script("cancel")
READ = Script("read")
DEPTH = Script("depth")
REVIVE = Script("revive")
