-- What migration 0021 added: two postings by one call.

select payonce.post_all(
    array['pay:21', 'refund:21'], array['payout', 'payout'], array['order-21', 'order-21'], array['t-21', null],
    array['paid', ''], array['payouts/clients', 'payouts/host_wallet', 'budgets/refunds'], array['ETH', 'ETH', 'ETH'],
    array[18, 18, 18]::smallint[], array[1, 1, 2, 2], array[1, 2, 2, 3], array[-40, 40, -3, 3]);
