"""The page on messages matches the contracts, and every queue of every service has one."""

from payonce.app.registry import SERVICES
from tests.docs import messages_page


def test_the_page_is_what_the_contracts_declare() -> None:
    assert messages_page.PAGE.read_text() == messages_page.page(), (
        "write it again: .venv/bin/python -m tests.docs.messages_page"
    )


def test_every_queue_that_a_service_handles_has_a_contract_on_the_page() -> None:
    shown = {policy.queue for policies in messages_page.SECTIONS.values() for policy in policies}
    handled = {handler.policy for service in SERVICES for handlers in service.roles.values() for handler in handlers}
    assert {policy.queue for policy in handled} == shown
    assert all(policy.contract is not None for policy in handled)


def test_every_action_that_is_handled_by_name_is_in_the_contract() -> None:
    for service in SERVICES:
        for handlers in service.roles.values():
            for handler in handlers:
                assert handler.policy.contract is not None
                assert handler.action is None or handler.action in handler.policy.contract.payloads


def test_every_schedule_puts_what_its_queue_takes() -> None:
    for service in SERVICES:
        for schedule in service.schedules:
            assert schedule.policy.contract is not None
            assert schedule.action in schedule.policy.contract.payloads, schedule.name
