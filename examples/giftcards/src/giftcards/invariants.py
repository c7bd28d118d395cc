"""What must always hold, as queries that return the rows that break it."""

from typing import Final

INVARIANTS: Final = {
    "each step of a card is posted once": """
        select c.id, c.state from giftcards.cards c
        where (case c.state when 'issued' then 1 when 'expired' then 2 else 0 end) <> (
            select count(*) from payonce.postings p where p.reference_kind = 'giftcard' and p.reference_id = c.id)
    """,
    "each issued card is a performed effect": """
        select c.id from giftcards.cards c
        where c.code is not null and not exists (
            select from payonce.effects e
            where e.kind = 'mint.issue' and e.key = c.id || '/issue' and e.state = 'performed'
                and e.vendor_ref = c.code)
    """,
    "each card under way has a message": """
        select c.id from giftcards.cards c
        where c.state in ('ordered', 'issuing') and not exists (
            select from payonce.live_messages m where m.correlation_id = c.id and m.queue = 'giftcards-issue')
    """,
}
