-- An address of an EVM network is 20 bytes; its hexadecimal digits may be written in either case. Payouts are compared
-- by what an address is, and keep it as the caller wrote it.
create function payouts.address_key(address text) returns text
    language sql immutable strict parallel safe
    return case when address ~ '^0x[0-9a-fA-F]{40}$' then lower(address) else address end;

grant execute on function payouts.address_key(text) to payonce_service;

drop index payouts.payouts_clients;
create index payouts_clients on payouts.payouts (payout_currency, payout_network, payouts.address_key(wallet_address))
    where state = 'accumulating';

-- Whether the same was asked for within a day, also under another spelling or as an older service's token.
create index payouts_of_a_user on payouts.payouts (user_id, created_at);

-- Who pays a swap's deposit is settled when hostpay is told of it. What was handed over to the operator's own GCHostPay
-- may be paid from then on.
alter table payouts.swaps
    add column paid_by text collate "C" not null default 'wallet' check (paid_by in ('wallet', 'external')),
    add column handed_over_at timestamptz,
    add constraint handed_over_after_told check (
        handed_over_at is null or (paid_by = 'external' and triggered_at is not null));
