"""Invariants of the host wallet: each query returns the rows that violate it."""

from typing import Final

WALLET_INVARIANTS: Final = {
    "a payment of the wallet stands where its swap does": """
        select p.swap_id, p.state, s.state as swap from payouts.wallet_payments p
        join payouts.swaps s on s.id = p.swap_id
        where not case p.state
            when 'signed' then s.state = 'paying'
            when 'final' then s.state in ('paid_in', 'finished', 'returned')
            else s.state = 'returned' end
    """,
    "every payment of the wallet has its row of hostpay and its effect": """
        select p.swap_id from payouts.wallet_payments p join payouts.swaps s on s.id = p.swap_id
        where not exists (
                select from payouts.split_payout_hostpay h
                where h.unique_id = s.unique_id and h.cn_api_id = s.cn_api_id and h.from_amount * 1e18 = p.amount_minor)
           or not exists (
                select from payonce.effects e where e.kind = 'evm.pay' and e.key = p.swap_id || '/pay'
                    and (p.state = 'signed' or e.state = 'performed'))
    """,
    "every payment has signed bytes, and no nonce is beyond the next": """
        select p.swap_id from payouts.wallet_payments p join payouts.wallets w on w.address = p.wallet
        where p.nonce >= w.next_nonce or not exists (
            select from payouts.wallet_attempts a where a.wallet = p.wallet and a.nonce = p.nonce and a.attempt = 1)
    """,
    "gas is in the books as the chain charged it": """
        select p.swap_id, p.fee_minor from payouts.wallet_payments p
        where p.fee_minor > 0 and p.fee_minor <> (
            select coalesce(sum(l.minor), 0) from payonce.postings t
            join payonce.posting_lines l on l.posting_id = t.id join payonce.accounts a on a.id = l.account_id
            where t.reference_kind = 'payout_swap' and t.reference_id = p.swap_id and a.path = 'payouts/network_fees')
    """,
}
