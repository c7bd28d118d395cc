-- A charge goes back as money, by refunds, or as credit for unused time, when the plan changes. What goes back one way does
-- not go back the other as well.

-- What changes of plan give back of a charge as credit. Held when the change is invoiced, and let go if it is not paid:
-- `transactions.credited_minor` counts it.
create table payments.credits_held (
    change_id text collate "C" not null check (length(change_id) between 1 and 100),
    transaction_id text collate "C" not null references payments.transactions (id),
    minor bigint not null check (minor >= 0),
    created_at timestamptz not null default payonce.due_now(),
    primary key (change_id, transaction_id)
);

create index credits_held_of on payments.credits_held (transaction_id);

grant select, insert, delete on payments.credits_held to payonce_service;

-- The next three are for subscriptions, to be called in the commit of a change: all of this schema that it touches. Whoever
-- asks for a refund locks the same row first, so of two that meet the second sees the first.

-- What of these charges is back as money, or on its way. Nobody asks for a refund of them until the transaction ends.
create function payments.going_back(charges text[]) returns table (transaction_id text, minor bigint)
language sql volatile as $$
    select t.id, t.refunded_minor + t.refunding_minor from payments.transactions t
    where t.id = any (charges) order by t.id for update
$$;

-- The first time, what of the charge now goes back both ways: more than nothing only where the change was reckoned before
-- credit was held. Null when it is held already.
create function payments.hold_credit(change text, charge text, wanted bigint) returns bigint
language sql volatile as $$
    with held as (
        insert into payments.credits_held (change_id, transaction_id, minor)
        select change, t.id, least(wanted, t.amount_minor - t.credited_minor)
        from payments.transactions t where t.id = charge
        on conflict do nothing returning transaction_id, minor
    )
    update payments.transactions t
    set credited_minor = t.credited_minor + h.minor, updated_at = payonce.due_now()
    from held h where t.id = h.transaction_id
    returning greatest(t.refunded_minor + t.refunding_minor + t.credited_minor - t.amount_minor, 0)
$$;

create function payments.release_credit(change text) returns void
language sql volatile as $$
    with released as (
        delete from payments.credits_held where change_id = change returning transaction_id, minor
    )
    update payments.transactions t
    set credited_minor = t.credited_minor - r.minor, updated_at = payonce.due_now()
    from released r where t.id = r.transaction_id
$$;
