"""The gateway's Lua scripts.

Each uses the keys of one hash tag only, so that it runs in a cluster, and takes time from Redis.
"""

from ...scripts import Script


def _script(name: str) -> Script:
    return Script(name, __name__)


RATE = _script("rate")
DRAINED = _script("drained")
TAKE_DUE = _script("take_due")
ADD_TASK = _script("add_task")
POSTPONE = _script("postpone")
ADD_TO_INDEX = _script("add_to_index")
ADVANCE = _script("advance")
USE_FILE = _script("use_file")
DELETE_FILE = _script("delete_file")
RECORD_LINES = _script("record_lines")
