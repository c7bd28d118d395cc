-- A charge may go back outside the gateway, by bank or by hand. A person says so when it has happened: such a refund has no
-- order at the gateway, and is over as it is put on record.

alter table payments.refunds
    add column outside boolean not null default false,
    drop constraint given_says_where,
    add constraint given_says_where check ((state = 'succeeded' and not outside) = (gateway_id is not null));
