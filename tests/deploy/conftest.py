"""The command of the tests of the command line."""

from tests.cli.conftest import clean_environment, database, payonce, servers, warm_parent

__all__ = ["clean_environment", "database", "payonce", "servers", "warm_parent"]
