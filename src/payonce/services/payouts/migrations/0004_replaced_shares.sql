-- Which earlier swaps of a payout came to nothing is asked before every payment. Few are ever replaced, so the index
-- stays small, and a swap that is not costs nothing.
create index shares_replaced on payouts.shares (payout_id) where not active;
