"""Which tokens of an account still count, as the subscription service says: payments has no accounts."""

import msgspec

from payonce.kit.outcomes import NotSent, Retry, Unknown
from payonce.services.billing.signed_requests import TOKEN_VERSION_PATH, SignedClient
from payonce.services.billing.token_versions import KnownVersions
from payonce.services.billing.wire import TokenVersion, TokenVersionQuery


class RemoteVersions(KnownVersions):
    """Where subscriptions do not answer, nobody is let in by token."""

    def __init__(self, client: SignedClient) -> None:
        async def asked(account_id: str) -> int | None:
            try:
                answer = await client.post(TOKEN_VERSION_PATH, TokenVersionQuery(account_id=account_id))
            except (NotSent, Unknown) as failed:
                raise Retry("subscriptions do not answer whether the access token still counts; try again") from failed
            if not answer.is_success:
                raise Retry(f"subscriptions answered {answer.status} when asked whether the access token still counts")
            return msgspec.json.decode(answer.body, type=TokenVersion).version

        super().__init__(asked)
