"""The HTTP calls that customers of the demo `billing` make to both services, repeated until answered, and their calls
to the gateway."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec

from payonce.kit.http import HttpClient, Response
from payonce.kit.outcomes import NotSent, Unknown
from payonce.services.billing.demo.customers import Customer, CustomerAction, Step
from payonce.services.billing.demo.processes import PAYMENTS, SUBSCRIPTIONS
from payonce.vendors.gateway.simulator import GatewaySimulator

TRY_AGAIN_S: Final = 0.3
TRIES_MAX: Final = 400
AT_ONCE: Final = 12
"""Concurrent calls; the services run their workers in the same processes."""
LATER: Final = frozenset({408, 409, 429})
"""Retryable statuses."""
CONFLICTS_MAX: Final = 40


@dataclass
class CustomerClients:
    clients: Mapping[str, HttpClient]
    key: str
    gateway: GatewaySimulator
    tokens: dict[str, str]
    """The charged card, by account."""
    cards: dict[str, set[str]]
    """Every card that an account has had, by account."""
    subscriptions: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    """Unexpected responses."""
    repeated: int = 0
    """Calls repeated because no response arrived."""
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def take(self, customer: Customer, place: int, step: Step) -> None:
        """Performs one step of a customer. A repeated order carries the same key and is executed once."""
        account, order = customer.id, f"{customer.id}-step-{place}"
        subscription = f"/v1/subscriptions/{self.subscriptions.get(account, '')}"
        match step.act:
            case CustomerAction.SUBSCRIBE | CustomerAction.TRY:
                path = "/v1/subscriptions" + ("/trial" if step.act is CustomerAction.TRY else "")
                asked = {} if step.act is CustomerAction.TRY else {"plan_id": step.what}
                made = await self._asked(SUBSCRIPTIONS, path, {**asked, "account_id": account}, order)
                self.subscriptions[account] = made.get("id", "")
            case CustomerAction.CHANGE:
                await self._asked(SUBSCRIPTIONS, f"{subscription}/change-plan", {"new_plan_id": step.what}, order)
            case CustomerAction.CANCEL:
                await self._asked(SUBSCRIPTIONS, f"{subscription}/cancel", {"at": step.what}, order)
            case CustomerAction.PAUSE | CustomerAction.RESUME:
                await self._asked(SUBSCRIPTIONS, f"{subscription}/{step.act}", None, order)
            case CustomerAction.NEW_CARD:
                await self._new_card(account, step.what)
            case CustomerAction.CARD_WILL:
                self.gateway.script(self.tokens[account], *step.what.split(","))
            case CustomerAction.CARD_BECOMES:
                self.gateway.replace_card(self.tokens[account], step.what)

    async def advance(self, customer: Customer, to: datetime) -> None:
        await self._asked(SUBSCRIPTIONS, f"/v1/test-clocks/{customer.id}/advance", {"to": to.isoformat()}, None)

    async def _new_card(self, account: str, number: str) -> None:
        token = self.tokens[account] = self.gateway.tokenise(number)
        self.cards[account].add(token)
        added = await self._asked(PAYMENTS, "/v1/payment-methods/", {"token": token, "account_id": account}, None)
        chosen = f"/v1/payment-methods/{added.get('id', '')}/default"
        await self._asked(PAYMENTS, chosen, None, None, query={"account_id": account})

    async def _asked(
        self, role: str, path: str, body: Any, order: str | None, query: Mapping[str, str] | None = None
    ) -> Any:
        """Returns the decoded response; an empty object, with an entry in `wrong`, if the call was rejected."""
        async with self._turns:
            answer = await self._posted(self.clients[role], path, body, order, query)
        if answer is None or not answer.is_success:
            problem = "no response" if answer is None else f"{answer.status}: {answer.excerpt()}"
            self.wrong.append(f"POST {path}: {problem}")
            return {}
        return msgspec.json.decode(answer.body) if answer.body else {}

    async def _posted(
        self, client: HttpClient, path: str, body: Any, order: str | None, query: Mapping[str, str] | None
    ) -> Response | None:
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        if order is not None:
            headers["Idempotency-Key"] = order
        encoded = None if body is None else msgspec.json.encode(body)
        conflicts = 0
        for _ in range(TRIES_MAX):
            try:
                answer = await client.request("POST", path, body=encoded, headers=headers, query=query)
            except (NotSent, Unknown):
                # The process was not listening, or was killed before it could respond.
                answer = None
            if answer is not None and answer.status in LATER:
                conflicts += 1
            if answer is not None and answer.status < 500 and (answer.status not in LATER or conflicts > CONFLICTS_MAX):
                return answer
            self.repeated += 1
            await asyncio.sleep(TRY_AGAIN_S)
        return None
