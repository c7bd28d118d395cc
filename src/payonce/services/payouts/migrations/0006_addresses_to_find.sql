-- A person who holds an address finds its payouts, whatever the spelling; also by the exchange's deposit address.
create index payouts_addresses on payouts.payouts (payouts.address_key(wallet_address), created_at);
create index swaps_deposit_addresses on payouts.swaps (payouts.address_key(payin_address))
    where payin_address is not null;
