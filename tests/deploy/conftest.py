"""Makes the fixture of the command-line tests available here."""

from tests.cli.conftest import clean_environment, database, payonce, servers, warm_parent

__all__ = ["clean_environment", "database", "payonce", "servers", "warm_parent"]
