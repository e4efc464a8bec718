"""What a request costs in Redis's memory: its log while it runs and after it ended, and its state.

    python -m benchmarks.log_memory [--tokens 50 200 1000 4000] [--per-event 1]

Writes logs with the worker's own scripts on a real server of each kind there is, and asks ``MEMORY USAGE``.
Tokens are random ids below 262,144 with four characters of text each, ``--per-event`` of them an event.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgpack
import redis

from headrace.clients.protocol import Delta, Done, Keys, Usage, encode_event
from headrace.worker.broker.scripts import CLAIM, EMIT, FINISH, Script

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from redis_servers import BINARIES, RedisServer, running

KEYS = Keys()
TTL = 3_600_000
CONSUMER = "worker-1.abcd1234"


def run(client: redis.Redis, script: Script, keys: list[str], arguments: list[str | bytes | int]) -> object:
    return client.eval(script.text, len(keys), *keys, *arguments)


def measure(client: redis.Redis, tokens: int, per_event: int) -> tuple[int, int, int, int]:
    """Bytes of the log while running, of the log once rewritten, and of the state at both times."""
    client.flushall()
    state, log, channel = (name("r" * 32) for name in (KEYS.request, KEYS.events, KEYS.channel))
    run(client, CLAIM, [state, log], ["1700000000000-0", 16, 1, CONSUMER, "m", "", TTL, 5, 5, 1, "workers"])
    chance = random.Random(0)
    ids = [chance.randrange(262_144) for _ in range(tokens)]
    text = "".join(chance.choices("abcdefghij ", k=4 * tokens))
    for seq in range(0, tokens, per_event):
        part = ids[seq : seq + per_event]
        event = Delta(seq, 4 * seq, 1, part, text[4 * seq : 4 * (seq + len(part))])
        packed: Any = msgpack.packb([(1, seq, len(part), encode_event(event))], use_bin_type=False)
        run(
            client,
            EMIT,
            [state, log, channel],
            [CONSUMER, TTL, "PUBLISH", packed],
        )

    def usage(key: str) -> int:
        return int(client.memory_usage(key, samples=0) or 0)

    running_log, running_state = usage(log), usage(state)
    whole = encode_event(Delta(0, 0, 1, ids, text))
    done = encode_event(Done(tokens, 1, "length", Usage(100, tokens, 0), None, None))
    arguments = [1, CONSUMER, tokens, whole, b"", done, "length", TTL, "PUBLISH", ""]
    run(client, FINISH, [state, log, channel], arguments)
    return running_log, usage(log), running_state, usage(state)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[50, 200, 1000, 4000])
    parser.add_argument("--per-event", type=int, default=1)
    options = parser.parse_args()
    print("| server | tokens | log, running | a token | log, ended | a token | state, running | ended |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in BINARIES:
        with tempfile.TemporaryDirectory() as folder, running(RedisServer(kind, Path(folder))) as server:
            client = server.connect()
            version = client.info("server").get(f"{kind}_version")
            for tokens in options.tokens:
                log, ended, state, ended_state = measure(client, tokens, options.per_event)
                print(
                    f"| {kind} {version} | {tokens} | {log} | {log / tokens:.0f} "
                    f"| {ended} | {ended / tokens:.1f} | {state} | {ended_state} |"
                )


if __name__ == "__main__":
    main()
