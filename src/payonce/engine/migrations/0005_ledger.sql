-- Double-entry books. Lines are only ever added, by payonce.post alone; a balance is a snapshot and the lines after it.

create table payonce.accounts (
    id bigint generated always as identity primary key,
    path text collate "C" not null
        check (length(path) <= 200 and path ~ '^[A-Za-z0-9_][A-Za-z0-9_.:@-]*(/[A-Za-z0-9_][A-Za-z0-9_.:@-]*)*$'),
    asset text collate "C" not null check (asset ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$'),
    -- The same code with another exponent is another asset.
    exponent smallint not null check (exponent between 0 and 36),
    guarded boolean not null default false,
    opened_at timestamptz not null default payonce.due_now(),
    unique (path, asset, exponent)
);

create table payonce.postings (
    id bigint generated always as identity primary key,
    key text collate "C" not null unique check (length(key) between 1 and 200),
    reference_kind text collate "C" not null check (length(reference_kind) between 1 and 100),
    reference_id text collate "C" not null check (length(reference_id) between 1 and 200),
    trace_id text collate "C",
    description text not null check (length(description) <= 1000),
    posted_at timestamptz not null
);

create index postings_reference on payonce.postings (reference_kind, reference_id);
create index postings_trace on payonce.postings (trace_id) where trace_id is not null;

-- No foreign keys: each would lock its target row, and the row of a hot account is everybody's. payonce.post keeps them.
create table payonce.posting_lines (
    posting_id bigint not null,
    account_id bigint not null,
    -- The transaction that wrote the line. Ids are given out before a commit, so a horizon of ids would pass over whoever
    -- commits late; a horizon of transactions, pg_snapshot_xmin, has nobody left below it.
    xact xid8 not null,
    posted_at timestamptz not null,
    number smallint not null,
    minor numeric(78, 0) not null check (minor <> 0 and minor <> 'NaN'),
    primary key (posting_id, number)
);

create index posting_lines_account on payonce.posting_lines (account_id, xact, posting_id, number);

-- The balance of every line below the horizon. None is removed, so that a past balance is near a snapshot too.
create table payonce.balance_snapshots (
    account_id bigint not null,
    horizon xid8 not null,
    balance numeric not null,
    -- The latest time among the lines covered: the snapshot serves any later moment.
    posted_until timestamptz not null,
    primary key (account_id, horizon)
);

-- The highest horizon of any snapshot, for postings to look at. An index would do, but the planner would take it for
-- the way to an account's last snapshot and walk over everybody else's.
create table payonce.ledger_horizon (
    singleton boolean primary key default true check (singleton),
    horizon xid8 not null default '0'
);
insert into payonce.ledger_horizon default values;

-- Only accounts that must not be overdrawn have a row that postings wait for.
create table payonce.guarded_balances (
    account_id bigint primary key,
    balance numeric not null default 0,
    minimum numeric,
    maximum numeric,
    check (minimum is not null or maximum is not null),
    check (balance >= minimum),
    check (balance <= maximum)
) with (fillfactor = 50);

create function payonce.refuse_change() returns trigger
    language plpgsql
as $$
begin
    raise exception 'payonce.% is append-only: correct a posting by another one', tg_table_name
        using errcode = 'restrict_violation';
end
$$;

create trigger append_only before update or delete or truncate on payonce.accounts
    for each statement execute function payonce.refuse_change();
create trigger append_only before update or delete or truncate on payonce.postings
    for each statement execute function payonce.refuse_change();
create trigger append_only before update or delete or truncate on payonce.posting_lines
    for each statement execute function payonce.refuse_change();
create trigger append_only before update or delete or truncate on payonce.balance_snapshots
    for each statement execute function payonce.refuse_change();

create view payonce.balances as
    select a.id as account_id, a.path, a.asset, a.exponent, a.guarded,
        coalesce(s.balance, 0) + coalesce(
            (select sum(l.minor) from payonce.posting_lines l
             where l.account_id = a.id and l.xact >= coalesce(s.horizon, '0')), 0) as balance
    from payonce.accounts a
    left join lateral (
        select b.balance, b.horizon from payonce.balance_snapshots b
        where b.account_id = a.id order by b.horizon desc limit 1
    ) s on true;

-- Errors of class LG are refusals: a caller shows their text. LG001 is a malformed posting, LG002 a key used for
-- another one, LG003 a guarded balance that would leave its limits, LG004 a ledger that needs payonce.rebase_ledger.

-- The ids of the accounts, in the order given, opened where they are new.
create function payonce.open_accounts(paths text[], assets text[], exponents smallint[]) returns bigint[]
    language plpgsql volatile security definer set search_path = pg_catalog, payonce, pg_temp
as $$
declare
    found_ids bigint[];
begin
    for round in 1..2 loop
        select array_agg(a.id order by n.place) into found_ids
        from unnest(paths, assets, exponents) with ordinality as n (path, asset, exponent, place)
        left join payonce.accounts a on a.path = n.path and a.asset = n.asset and a.exponent = n.exponent;
        exit when array_position(found_ids, null) is null;
        -- Sorted, so that two postings that open the same accounts wait for each other and not in a circle.
        insert into payonce.accounts (path, asset, exponent)
        select distinct n.path, n.asset, n.exponent from unnest(paths, assets, exponents) as n (path, asset, exponent)
        order by 1, 2, 3
        on conflict do nothing;
    end loop;
    return found_ids;
end
$$;

-- The two that follow are steps of payonce.post, and run with its search path.
create function payonce.check_lines(paths text[], assets text[], exponents smallint[], minors numeric[]) returns void
    language plpgsql immutable
as $$
declare
    misfit boolean;
    excess text;
begin
    if coalesce(cardinality(minors), 0) not between 2 and 1000
        or cardinality(paths) is distinct from cardinality(minors)
        or cardinality(assets) is distinct from cardinality(minors)
        or cardinality(exponents) is distinct from cardinality(minors) then
        raise exception 'a posting has 2 to 1000 lines, each with an account, an asset, its exponent and an amount'
            using errcode = 'LG001';
    end if;
    select bool_or(sums.misfit),
        string_agg(format('%s minor units of %s with %s decimals', total, asset, exponent), ', ') filter (where total <> 0)
    into misfit, excess
    from (
        -- A fraction would be rounded on its way into the table, after the sum was found to be zero.
        select asset, exponent, sum(minor) as total,
            bool_or(minor is null or minor = 'NaN' or minor = 0 or abs(minor) >= 1e78 or minor <> trunc(minor)) as misfit
        from unnest(assets, exponents, minors) as n (asset, exponent, minor) group by asset, exponent
    ) sums;
    if misfit then
        raise exception 'the amount of a line is a whole number of minor units, not zero, of at most 78 digits'
            using errcode = 'LG001';
    elsif excess is not null then
        raise exception 'the lines do not add up to zero: % too much', excess using errcode = 'LG001';
    end if;
end
$$;

-- Locks in the order of account ids: two postings over the same accounts wait for each other, never in a circle.
create function payonce.move_guarded(ids bigint[], minors numeric[]) returns void
    language plpgsql volatile
as $$
declare
    moved record;
begin
    for moved in
        select n.id, a.path, a.asset, a.exponent, sum(n.minor) as minor
        from unnest(ids, minors) as n (id, minor) join payonce.accounts a on a.id = n.id and a.guarded
        group by 1, 2, 3, 4 order by 1
    loop
        declare
            held payonce.guarded_balances;
        begin
            select * into strict held from payonce.guarded_balances where account_id = moved.id for update;
            if moved.minor < 0 and held.balance + moved.minor < held.minimum
                or moved.minor > 0 and held.balance + moved.minor > held.maximum then
                raise exception 'account % holds % minor units of % and cannot be changed by %: it is kept between % and %',
                    moved.path, held.balance, moved.asset, moved.minor,
                    coalesce(held.minimum::text, 'any debt'), coalesce(held.maximum::text, 'any amount')
                    using errcode = 'LG003', detail = json_build_array(
                        moved.path, moved.asset, moved.exponent, held.balance::text, moved.minor::text,
                        held.minimum::text, held.maximum::text)::text;
            end if;
            update payonce.guarded_balances set balance = balance + moved.minor where account_id = moved.id;
        end;
    end loop;
end
$$;

-- The one way into the books.
create function payonce.post(
    posting_key text, kind_of_reference text, id_of_reference text, trace text, words text,
    paths text[], assets text[], exponents smallint[], minors numeric[]
) returns bigint
    language plpgsql volatile security definer set search_path = pg_catalog, payonce, pg_temp
    -- The length of an array is no reason to plan again for every posting.
    set plan_cache_mode = force_generic_plan
as $$
declare
    posting bigint;
    earlier payonce.postings;
    ids bigint[];
    touches_guarded boolean;
    moment timestamptz := payonce.due_now();
begin
    perform payonce.check_lines(paths, assets, exponents, minors);
    if (select horizon from payonce.ledger_horizon) > pg_current_xact_id() then
        raise exception 'the ledger comes from a server that had counted more transactions than this one: '
            'as its owner run select payonce.rebase_ledger()' using errcode = 'LG004';
    end if;
    insert into payonce.postings (key, reference_kind, reference_id, trace_id, description, posted_at)
    values (posting_key, kind_of_reference, id_of_reference, trace, words, moment)
    on conflict (key) do nothing returning id into posting;
    select array_agg(a.id order by n.place), coalesce(bool_or(a.guarded), false) into ids, touches_guarded
    from unnest(paths, assets, exponents) with ordinality as n (path, asset, exponent, place)
    left join payonce.accounts a on a.path = n.path and a.asset = n.asset and a.exponent = n.exponent;
    if array_position(ids, null) is not null then
        ids := payonce.open_accounts(paths, assets, exponents);
        -- Somebody else may have opened one of them, with a guard, since we looked.
        touches_guarded := true;
    end if;
    if posting is null then
        select * into strict earlier from payonce.postings where key = posting_key;
        if (earlier.reference_kind, earlier.reference_id) is distinct from (kind_of_reference, id_of_reference)
            or (select array_agg((account_id, minor) order by account_id, minor)
                from payonce.posting_lines where posting_id = earlier.id)
                is distinct from
               (select array_agg((id, minor) order by id, minor) from unnest(ids, minors) as n (id, minor)) then
            raise exception 'key % belongs to posting % of % %, which has another reference or other lines',
                posting_key, earlier.id, earlier.reference_kind, earlier.reference_id using errcode = 'LG002';
        end if;
        return earlier.id;
    end if;
    insert into payonce.posting_lines (posting_id, account_id, xact, posted_at, number, minor)
    select posting, n.id, pg_current_xact_id(), moment, n.number, n.minor
    from unnest(ids, minors) with ordinality as n (id, minor, number);
    if touches_guarded then
        perform payonce.move_guarded(ids, minors);
    end if;
    return posting;
end
$$;

-- Opens a guarded account, or gives a guarded one other limits. An account in use without a guard cannot get one:
-- a posting that is under way would not be counted.
create function payonce.guard_account(
    path_of_account text, asset_of_account text, exponent_of_asset smallint, lowest numeric, highest numeric
) returns bigint
    language plpgsql volatile security definer set search_path = pg_catalog, payonce, pg_temp
as $$
declare
    account payonce.accounts;
    held payonce.guarded_balances;
begin
    insert into payonce.accounts (path, asset, exponent, guarded)
    values (path_of_account, asset_of_account, exponent_of_asset, true)
    on conflict do nothing returning * into account;
    if found then
        if lowest > 0 or highest < 0 then
            raise exception 'account % begins with nothing, which is outside its limits: let them include zero',
                path_of_account using errcode = 'LG001';
        end if;
        insert into payonce.guarded_balances (account_id, minimum, maximum) values (account.id, lowest, highest);
        return account.id;
    end if;
    select * into strict account from payonce.accounts
    where path = path_of_account and asset = asset_of_account and exponent = exponent_of_asset;
    if not account.guarded then
        raise exception 'account % of % is in use without a guard: guard an account before its first posting',
            path_of_account, asset_of_account using errcode = 'LG001';
    end if;
    select * into strict held from payonce.guarded_balances where account_id = account.id for update;
    if held.balance < lowest or held.balance > highest then
        raise exception 'account % holds % minor units of %, outside the new limits: move money first',
            path_of_account, held.balance, asset_of_account using errcode = 'LG001';
    end if;
    update payonce.guarded_balances set minimum = lowest, maximum = highest
    where account_id = account.id and (minimum, maximum) is distinct from (lowest, highest);
    return account.id;
end
$$;

-- One batch of accounts in the order of their ids; a snapshot where at least `lines_wanted` lines became final.
create function payonce.snapshot_accounts(
    after_account bigint, account_limit integer, lines_wanted bigint, out last_account bigint, out made bigint
)
    language sql volatile security definer set search_path = pg_catalog, payonce, pg_temp
as $$
    with batch as (
        select id from payonce.accounts where id > after_account order by id limit account_limit
    ), settled as (
        select pg_snapshot_xmin(pg_current_snapshot()) as horizon
    ), latest as (
        select batch.id, s.balance, s.posted_until, coalesce(s.horizon, '0') as horizon
        from batch left join lateral (
            select * from payonce.balance_snapshots b where b.account_id = batch.id order by b.horizon desc limit 1
        ) s on true
    ), written as (
        insert into payonce.balance_snapshots (account_id, horizon, balance, posted_until)
        select latest.id, settled.horizon, coalesce(latest.balance, 0) + added.minor,
            greatest(latest.posted_until, added.posted_until)
        from settled, latest cross join lateral (
            select count(*) as lines, sum(l.minor) as minor, max(l.posted_at) as posted_until
            from payonce.posting_lines l
            where l.account_id = latest.id and l.xact >= latest.horizon and l.xact < settled.horizon
        ) added
        where added.lines >= greatest(lines_wanted, 1)
        on conflict do nothing
        returning horizon
    ), raised as (
        update payonce.ledger_horizon set horizon = (select max(horizon) from written)
        where horizon < (select max(horizon) from written)
    )
    select (select max(id) from batch), (select count(*) from written)
$$;

-- For the owner, after a logical backup was restored into a younger server: its transactions begin below the ones on
-- record. Old lines become older than any transaction, and snapshots are made anew.
create function payonce.rebase_ledger() returns void
    language plpgsql volatile set search_path = pg_catalog, payonce, pg_temp
as $$
begin
    lock table payonce.posting_lines, payonce.balance_snapshots in access exclusive mode;
    alter table payonce.posting_lines disable trigger append_only;
    alter table payonce.balance_snapshots disable trigger append_only;
    update payonce.posting_lines set xact = '1';
    delete from payonce.balance_snapshots;
    update payonce.ledger_horizon set horizon = '0';
    alter table payonce.posting_lines enable trigger append_only;
    alter table payonce.balance_snapshots enable trigger append_only;
end
$$;

revoke all on function payonce.open_accounts(text[], text[], smallint[]),
    payonce.check_lines(text[], text[], smallint[], numeric[]), payonce.move_guarded(bigint[], numeric[]),
    payonce.post(text, text, text, text, text, text[], text[], smallint[], numeric[]),
    payonce.guard_account(text, text, smallint, numeric, numeric),
    payonce.snapshot_accounts(bigint, integer, bigint), payonce.rebase_ledger() from public;
grant execute on function payonce.post(text, text, text, text, text, text[], text[], smallint[], numeric[]),
    payonce.open_accounts(text[], text[], smallint[]), payonce.guard_account(text, text, smallint, numeric, numeric),
    payonce.snapshot_accounts(bigint, integer, bigint) to payonce_service;
grant select on payonce.accounts, payonce.postings, payonce.posting_lines, payonce.balance_snapshots,
    payonce.ledger_horizon, payonce.guarded_balances, payonce.balances to payonce_service;
