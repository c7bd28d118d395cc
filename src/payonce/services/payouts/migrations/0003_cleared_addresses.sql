-- What people agree to is one payment to one address, whatever it is split into; and who let a payout go on or gave it
-- another address does not agree to its payment.

-- Those of before name no address: they stay as what was said, and count for nothing. What they allowed is asked anew.
alter table payouts.wallet_clearances
    drop constraint wallet_clearances_pkey,
    alter column part drop not null,
    add column address text collate "C" check (length(address) between 1 and 200),
    add column extra_id text collate "C" check (length(extra_id) between 1 and 120),
    -- When the payout got another address.
    add column void_at timestamptz,
    add constraint cleared_for_an_address check ((address is null) = (part is not null));

update payouts.wallet_clearances set void_at = payonce.due_now();

create unique index wallet_clearances_in_force on payouts.wallet_clearances
    (unique_id, amount_minor, address, extra_id) nulls not distinct where void_at is null and address is not null;

grant update (void_at) on payouts.wallet_clearances to payonce_service;

alter table payouts.payouts
    -- Who gave it the address it has, if that is not the caller's.
    add column addressed_by text collate "C" check (length(addressed_by) > 0),
    -- Who let it go on last.
    add column released_by text collate "C" check (length(released_by) > 0);
