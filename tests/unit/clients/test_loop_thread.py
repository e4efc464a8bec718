"""Interrupts of a wait leave the loop's thread able to work, whenever they come."""

import subprocess
import sys

PROGRAM = """
import asyncio, random, signal
from headrace.clients.loop_thread import LoopThread

async def echo(value):
    await asyncio.sleep(0.0002)
    return value

def interrupt(_signal, _frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
thread = LoopThread()
interrupted = 0
for attempt in range(3000):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 8e-4))
        assert thread.run(echo(attempt)) == attempt
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
signal.setitimer(signal.ITIMER_REAL, 0)
assert thread.run(echo(7)) == 7
thread.stop()
print(interrupted > 100)
"""


def test_interrupts_at_any_moment() -> None:
    """In a process of its own: some come when Python can only print them."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "True\n", done.stderr[-2000:]
