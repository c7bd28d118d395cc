"""The token versions of accounts, fetched from the subscription service: payments has no accounts."""

import msgspec

from payonce.kit.outcomes import NotSent, Retry, Unknown
from payonce.services.billing.api.token_versions import KnownVersions
from payonce.services.billing.signed_requests import TOKEN_VERSION_PATH, SignedClient
from payonce.services.billing.wire import TokenVersion, TokenVersionQuery


class RemoteVersions(KnownVersions):
    """If subscriptions does not respond, tokens are not accepted."""

    def __init__(self, client: SignedClient) -> None:
        async def asked(account_id: str) -> int | None:
            try:
                answer = await client.post(TOKEN_VERSION_PATH, TokenVersionQuery(account_id=account_id))
            except (NotSent, Unknown) as failed:
                raise Retry(
                    "subscriptions did not respond whether the access token is still valid; try again"
                ) from failed
            if not answer.is_success:
                raise Retry(
                    f"subscriptions answered {answer.status} when asked whether the access token is still valid"
                )
            return msgspec.json.decode(answer.body, type=TokenVersion).version

        super().__init__(asked)
