"""The measurement of the ledger runs, leaves sound books behind and can be repeated in the same database."""

from payonce.bench.ledger import run
from payonce.testing import ScratchDatabase


def test_postings_into_one_hot_account_are_counted(scratch: ScratchDatabase) -> None:
    for _ in range(2):
        figures = run(scratch.service_url, 0.2, connections=3)
        assert figures["postings"] > 0
        assert figures["postings_per_s"] > 0
