"""The Lua scripts, one per step of a message's life. Each is one atomic round trip."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(eq=False)
class Script:
    """A script without its clock functions, which differ for test databases."""

    name: str
    body: str


@cache
def source(name: str) -> str:
    return files(__package__).joinpath(f"{name}.lua").read_text()


def _of_a_queue(name: str) -> Script:
    return Script(name, source("lib") + source(name))


PUT = _of_a_queue("put")
EXCHANGE = _of_a_queue("exchange")
REPAIR = _of_a_queue("repair")
EXTEND = _of_a_queue("extend")
MARK_ALONE = _of_a_queue("mark_alone")
DEAD = _of_a_queue("dead")
REAP = _of_a_queue("reap")
GIVE_BACK = _of_a_queue("give_back")
DEPTH = _of_a_queue("depth")
LIST = _of_a_queue("list")
REDRIVE = _of_a_queue("redrive")
PURGE = _of_a_queue("purge")
DELIVER = _of_a_queue("deliver")
HOLD = _of_a_queue("hold")
LIVE = _of_a_queue("live")
PRESENT = _of_a_queue("present")
MEND = _of_a_queue("mend")
PARK_COPY = _of_a_queue("park_copy")
PARKED = _of_a_queue("parked")
DROP_PARKED = _of_a_queue("drop_parked")
NAME = _of_a_queue("name")
MARK_KEPT = _of_a_queue("mark_kept")
LIST_KEYS = _of_a_queue("list_keys")
TAKE_KEYS = _of_a_queue("take_keys")
LOG = _of_a_queue("log")
DECLARE = Script("declare", source("declare"))
CLOCK = Script("ask_clock", source("ask_clock"))
SET_CLOCK = Script("set_clock", source("set_clock"))
TIMELESS = (SET_CLOCK,)
