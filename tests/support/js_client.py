"""The JavaScript client, in a Node process that does what a test says."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from node_packages import ENVIRONMENT, NODE, SUITE

_LONG = 60.0


def _number(text: str) -> float:
    """JavaScript writes a float without a fraction as a whole number, with the digits that tell it apart."""
    whole = int(text)
    return whole if abs(whole) < 1 << 53 else float(text)


class JsError(Exception):
    """What the client threw: its ``name``, and its ``fields``."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['name']}: {error['message']}")
        self.name: str = error["name"]
        self.fields = error


class JsProcess:
    """Use ``js_process``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._numbers = 0

    async def do(self, name: str, **arguments: Any) -> Any:
        """Raises ``JsError``."""
        self._numbers += 1
        number = self._numbers
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        line = json.dumps({"n": number, "do": name, **arguments})
        self._process.stdin.write(line.encode() + b"\n")
        async with asyncio.timeout(_LONG):
            return await answer

    async def open(self, url: str, **options: Any) -> "JsClient":
        self._numbers += 1
        client = JsClient(self, self._numbers)
        await client.do("open", url=url, options=options)
        return client

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def read(self) -> None:
        """Hand out the answers, until the process ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line, parse_int=_number)
            answer = self._waiting.pop(said["n"])
            if answer.done():
                continue
            if "error" in said:
                answer.set_exception(JsError(said["error"]))
            else:
                answer.set_result(said.get("value"))
        for answer in self._waiting.values():
            answer.set_exception(RuntimeError("the Node process has ended"))


class JsClient:
    """One client in the process."""

    def __init__(self, process: JsProcess, number: int) -> None:
        self.process = process
        self._number = number

    async def do(self, name: str, **arguments: Any) -> Any:
        return await self.process.do(name, client=self._number, **arguments)

    async def submit(self, **request: Any) -> "JsHandle":
        return JsHandle(self, await self.do("submit", request=request))

    async def submit_all(self, requests: list[dict[str, Any]]) -> "list[JsHandle]":
        return [JsHandle(self, name) for name in await self.do("submitAll", requests=requests)]

    async def attach(self, request_id: str, **options: Any) -> "JsHandle":
        await self.do("attach", id=request_id, options=options)
        return JsHandle(self, request_id)

    async def close(self) -> None:
        await self.do("close")


class JsHandle:
    """One request; it follows it with ``events``."""

    def __init__(self, client: JsClient, request_id: str) -> None:
        self.id = request_id
        self._client = client

    async def do(self, name: str, **arguments: Any) -> Any:
        return await self._client.do(name, id=self.id, **arguments)

    async def events(self, **options: Any) -> AsyncIterator[dict[str, Any]]:
        """Each event is asked for when it is wanted."""
        process, stream = self._client.process, self._client.process.number()
        await self.do("follow", stream=stream, options=options)
        try:
            while (event := await process.do("next", stream=stream)) is not None:
                yield event
        finally:
            await process.do("leave", stream=stream)

    async def result(self, **options: Any) -> dict[str, Any]:
        return await self.do("result", **options)

    async def text(self) -> str:
        return await self.do("text")

    async def status(self) -> dict[str, Any]:
        return await self.do("status")

    async def cancel(self) -> bool:
        return await self.do("cancel")


@asynccontextmanager
async def js_process() -> AsyncIterator[JsProcess]:
    """A Node process; what it writes to stderr is the test's."""
    process = await asyncio.create_subprocess_exec(
        NODE,
        "--expose-gc",
        str(SUITE / "driver.mjs"),
        env=ENVIRONMENT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 26,
    )
    running = JsProcess(process)
    reading = asyncio.create_task(running.read())
    try:
        yield running
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(20):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        await reading
