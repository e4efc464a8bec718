"""A host's clock that is hours away, for a process of a test."""

WRONG_CLOCK = """\
import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {hours} * 3600
time.time_ns = lambda: _time_ns() + {hours} * 3600 * 10**9
"""
"""A program to run first, so many ``hours`` ahead."""
