"""The measurement of the ledger runs, leaves sound books behind and can be repeated in the same database."""

from bench import ledger_seals
from bench.ledger import run
from payonce.testing import ScratchDatabase


def test_postings_into_one_hot_account_are_counted(scratch: ScratchDatabase) -> None:
    for _ in range(2):
        figures = run(scratch.service_url, 0.2, connections=3)
        assert figures["postings"] > 0
        assert figures["postings_per_s"] > 0


def test_the_price_of_sealing_is_measured_on_a_ledger_that_verifies(scratch: ScratchDatabase) -> None:
    figures = ledger_seals.run(scratch.service_url, 0.2, rounds=1, connections=3)
    assert min(figures.values()) > 0 or figures["server_cpu_us_per_sealed_posting"] == 0
    assert figures["bytes_per_sealed_posting"] > 32, "a digest for each"
