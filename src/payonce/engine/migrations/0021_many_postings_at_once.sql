-- Many postings in one call, for runs that share a transaction: what the books cost is mostly the calls and their
-- statements, not the rows. payonce.post stays the way in for one.

-- Writes them as payonce.post would one after the other, in the order given, and answers their ids in that order.
-- If it would refuse one, that is refused here in the same words, and nothing is written; of several, any of them is
-- told. Lines name their posting and their account by place, counted from one.
--
-- Locks come in one order, so that two calls wait for each other and never in a circle: keys as they sort, new accounts
-- as they sort, guarded balances by the ids of their accounts.
create function payonce.post_all(
    keys text[], kinds_of_reference text[], ids_of_reference text[], traces text[], words text[],
    paths text[], assets text[], exponents smallint[],
    postings_of_lines integer[], accounts_of_lines integer[], minors numeric[]
) returns bigint[]
    language plpgsql volatile security definer set search_path = pg_catalog, payonce, pg_temp
    set plan_cache_mode = force_generic_plan
as $$
declare
    ids bigint[];
    written bigint[];
    all_written boolean;
    accounts bigint[];
    touches_guarded boolean;
    posting record;
    moment timestamptz := payonce.due_now();
begin
    perform payonce.check_postings(
        keys, kinds_of_reference, ids_of_reference, traces, words, paths, assets, exponents,
        postings_of_lines, accounts_of_lines, minors);
    if (select horizon from payonce.ledger_horizon) > pg_current_xact_id() then
        raise exception 'the ledger comes from a server that had counted more transactions than this one: '
            'as its owner run select payonce.rebase_ledger()' using errcode = 'LG004';
    end if;
    -- Drawn ahead: ids in the order given, whatever the order of the keys.
    ids := array(select nextval('payonce.postings_id_seq') from generate_series(1, cardinality(keys)));
    with made as (
        insert into payonce.postings (id, key, reference_kind, reference_id, trace_id, description, posted_at)
        overriding system value
        select n.id, n.key, n.kind, n.reference_id, n.trace, n.description, moment
        from unnest(ids, keys, kinds_of_reference, ids_of_reference, traces, words)
            as n (id, key, kind, reference_id, trace, description)
        order by n.key collate "C", n.id
        on conflict (key) do nothing returning id
    )
    select coalesce(array_agg(made.id), '{}') into written from made;
    all_written := cardinality(written) = cardinality(ids);
    select array_agg(a.id order by n.place), coalesce(bool_or(a.guarded), false) into accounts, touches_guarded
    from unnest(paths, assets, exponents) with ordinality as n (path, asset, exponent, place)
    left join payonce.accounts a on a.path = n.path and a.asset = n.asset and a.exponent = n.exponent;
    if array_position(accounts, null) is not null then
        accounts := payonce.open_accounts(paths, assets, exponents);
        -- Somebody else may have opened one of them, with a guard, since we looked.
        touches_guarded := true;
    end if;
    insert into payonce.posting_lines (posting_id, account_id, xact, posted_at, number, minor)
    select ids[n.posting], accounts[n.account], pg_current_xact_id(), moment,
        row_number() over (partition by n.posting order by n.place), n.minor
    from unnest(postings_of_lines, accounts_of_lines, minors) with ordinality as n (posting, account, minor, place)
    where all_written or ids[n.posting] = any(written);
    if touches_guarded then
        perform from payonce.guarded_balances where account_id = any(accounts) order by account_id for update;
        for posting in
            select array_agg(a.id) as accounts, array_agg(n.minor) as minors
            from unnest(postings_of_lines, accounts_of_lines, minors) as n (posting, account, minor)
            join payonce.accounts a on a.id = accounts[n.account] and a.guarded
            where ids[n.posting] = any(written)
            group by n.posting order by n.posting
        loop
            perform payonce.move_guarded(posting.accounts, posting.minors);
        end loop;
    end if;
    if not all_written then
        -- Their keys are taken, perhaps by others of this call, whose lines are there by now: payonce.post compares.
        for posting in
            select n.posting as place, array_agg(paths[n.account]) as paths, array_agg(assets[n.account]) as assets,
                array_agg(exponents[n.account]) as exponents, array_agg(n.minor) as minors
            from unnest(postings_of_lines, accounts_of_lines, minors) as n (posting, account, minor)
            where ids[n.posting] <> all(written)
            group by n.posting order by n.posting
        loop
            ids[posting.place] := payonce.post(
                keys[posting.place], kinds_of_reference[posting.place], ids_of_reference[posting.place],
                traces[posting.place], words[posting.place],
                posting.paths, posting.assets, posting.exponents, posting.minors);
        end loop;
    end if;
    return ids;
end
$$;

-- A step of payonce.post_all, and runs with its search path: what payonce.check_lines is for one.
create function payonce.check_postings(
    keys text[], kinds_of_reference text[], ids_of_reference text[], traces text[], words text[],
    paths text[], assets text[], exponents smallint[],
    postings_of_lines integer[], accounts_of_lines integer[], minors numeric[]
) returns void
    language plpgsql immutable
as $$
declare
    -- Dimensions tell more than a length: a place means the same element to everybody only in an array that counts from
    -- one and has no rows of rows.
    by_posting text := '[1:' || cardinality(keys) || ']';
    by_account text := '[1:' || cardinality(paths) || ']';
    by_line text := '[1:' || cardinality(minors) || ']';
    posting record;
begin
    if (array_dims(keys), array_dims(kinds_of_reference), array_dims(ids_of_reference), array_dims(traces),
            array_dims(words), array_dims(paths), array_dims(assets), array_dims(exponents),
            array_dims(postings_of_lines), array_dims(accounts_of_lines), array_dims(minors))
        is not distinct from
        (by_posting, by_posting, by_posting, by_posting, by_posting, by_account, by_account, by_account,
            by_line, by_line, by_line)
        and (
            select count(*) = cardinality(keys) and bool_and(fits and lines between 2 and 1000)
            from (
                select sums.posting, sum(lines) as lines, bool_and(fits and total = 0) as fits
                from (
                    select n.posting, count(*) as lines, sum(n.minor) as total,
                        bool_and((n.posting between 1 and cardinality(keys)
                            and n.account between 1 and cardinality(paths)
                            and n.minor <> 0 and abs(n.minor) < 1e78 and n.minor = trunc(n.minor)) is true) as fits
                    from unnest(postings_of_lines, accounts_of_lines, minors) as n (posting, account, minor)
                    group by n.posting, assets[n.account], exponents[n.account]
                ) sums group by sums.posting
            ) checked
        ) then
        return;
    end if;
    for posting in
        select array_agg(paths[n.account]) as paths, array_agg(assets[n.account]) as assets,
            array_agg(exponents[n.account]) as exponents, array_agg(n.minor) as minors
        from unnest(postings_of_lines, accounts_of_lines, minors) as n (posting, account, minor)
        group by n.posting order by n.posting
    loop
        perform payonce.check_lines(posting.paths, posting.assets, posting.exponents, posting.minors);
    end loop;
    raise exception 'a posting has 2 to 1000 lines, each with an account, an asset, its exponent and an amount'
        using errcode = 'LG001';
end
$$;

revoke all on function payonce.post_all(
        text[], text[], text[], text[], text[], text[], text[], smallint[], integer[], integer[], numeric[]),
    payonce.check_postings(
        text[], text[], text[], text[], text[], text[], text[], smallint[], integer[], integer[], numeric[])
    from public;
grant execute on function payonce.post_all(
    text[], text[], text[], text[], text[], text[], text[], smallint[], integer[], integer[], numeric[])
    to payonce_service;
