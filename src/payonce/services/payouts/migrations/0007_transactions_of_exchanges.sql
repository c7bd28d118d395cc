-- The transactions of an exchange by its own word: the deposit that came in, and what the client was sent. A person who
-- holds one finds the payout; of a deposit that the operator's own GCHostPay paid there is no other record.
alter table payouts.swaps
    add column payin_hash text collate "C" check (length(payin_hash) between 1 and 200),
    add column payout_hash text collate "C" check (length(payout_hash) between 1 and 200);

create index swaps_payin_hash on payouts.swaps (payin_hash) where payin_hash is not null;
create index swaps_payout_hash on payouts.swaps (payout_hash) where payout_hash is not null;
