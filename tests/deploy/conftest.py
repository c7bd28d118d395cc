"""The command of the tests of the command line."""

from tests.cli.conftest import clean_environment, database, payonce, warm_parent

__all__ = ["clean_environment", "database", "payonce", "warm_parent"]
