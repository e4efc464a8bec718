"""After a run: every log, every state and the dead letters, against the promise and against what was seen."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import redis.asyncio
from simulated_model import MODEL

from headrace.clients.protocol import Delta, Done, Keys, decode_event, decode_request

from .views import View, Violation, view_of
from .workload import Job


async def check_logs(
    server: redis.asyncio.Redis, jobs: Mapping[str, Job], views: Iterable[View], *, durable: bool
) -> tuple[Counter[str], int, list[str]]:
    """How requests ended by their logs, tokens in all, and what is wrong."""
    ended: Counter[str] = Counter()
    tokens = 0
    problems: list[str] = []
    seen: dict[str, list[View]] = {}
    for view in views:
        seen.setdefault(view.job.request.id, []).append(view)
    for name, job in jobs.items():
        try:
            if not durable and seen.get(name) and not await server.exists(Keys().request(name)):
                ended["forgotten"] += 1  # by Redis, after its end
                continue
            view = await _check_log(server, job)
            assert view.done is not None
            ended[view.done.finish_reason] += 1
            tokens += len(view.tokens)
            # A server that forgot an end may see another one; one that is durable may not.
            for other in seen.get(name, []) if durable else []:
                if (other.tokens, other.text, other.done) != (view.tokens, view.text, view.done):
                    raise Violation(f"{name}: {other.who} saw another end than the log has")
        except Violation as problem:
            problems.append(str(problem))
    poisoned = {name for name, job in jobs.items() if job.interruption == "poison"}
    letters: Any = await server.xrange(Keys().dead(MODEL))
    dead = [decode_request(fields[b"r"]).id for _, fields in letters]
    if durable and sorted(dead) != sorted(poisoned):
        problems.append(f"dead letters of {sorted(dead)}, poison was {sorted(poisoned)}")
    return ended, tokens, problems


async def _check_log(server: redis.asyncio.Redis, job: Job) -> View:
    name, keys = job.request.id, Keys()
    entries: Any = await server.xrange(keys.events(name))
    state: Any = await server.hgetall(keys.request(name))
    events = [decode_event(fields[b"e"]) for _, fields in entries]
    kinds = [type(event) for event in events]
    if kinds not in ([Done], [Delta, Done]):
        raise Violation(f"{name}: its log is {[kind.__name__ for kind in kinds]}")
    view = view_of(job, "log", [event for event in events if event is not None])
    view.check()
    assert view.done is not None
    noted = (state.get(b"status"), state.get(b"finish_reason"), state.get(b"seq"))
    if noted != (b"finished", view.done.finish_reason.encode(), str(view.done.seq).encode()):
        raise Violation(f"{name}: its state says {noted}")
    return view
