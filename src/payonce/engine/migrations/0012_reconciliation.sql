-- Vendors' statements held against our effects, what did not match, and the quarantine of a database that may have lost
-- commits.

create table payonce.statement_sources (
    vendor text collate "C" primary key,
    -- The account that mirrors our money at the vendor.
    mirror text collate "C" not null,
    kinds text[] not null,
    -- How late the vendor may show what happened.
    lag_s float8 not null check (lag_s >= 0),
    -- The last stretch without a gap in which every line was looked at; null before the first run.
    covered_since timestamptz,
    covered_until timestamptz,
    registered_at timestamptz not null default payonce.due_now(),
    constraint coverage_is_a_stretch check (
        (covered_since is null) = (covered_until is null) and covered_since < covered_until)
);

create table payonce.reconcile_runs (
    id uuid primary key,
    vendor text collate "C" not null references payonce.statement_sources (vendor),
    since timestamptz not null,
    until timestamptz not null check (since < until),
    -- Up to here every line was looked at: whoever goes on begins here.
    reached timestamptz not null check (reached between since and until),
    state text collate "C" not null default 'running' check (state in ('running', 'finished', 'abandoned')),
    lines bigint not null default 0,
    found bigint not null default 0,
    adopted bigint not null default 0,
    unmatched bigint not null default 0,
    missing bigint not null default 0,
    settled bigint not null default 0,
    begun_by text collate "C" not null,
    begun_at timestamptz not null default payonce.due_now(),
    finished_at timestamptz,
    constraint finished_runs_have_a_time check ((state = 'finished') = (finished_at is not null)),
    -- What lies further back than the vendor's lag is shown when it is read only if reading begins after the end.
    constraint runs_are_begun_after_their_end check (until <= begun_at)
);

create unique index reconcile_runs_running on payonce.reconcile_runs (vendor) where state = 'running';
create index reconcile_runs_finished on payonce.reconcile_runs (vendor, begun_at) where state = 'finished';

-- What the vendor told, one row per line of its statement.
create table payonce.statement_lines (
    vendor text collate "C" not null,
    kind text collate "C" not null,
    vendor_ref text collate "C" not null,
    reference text collate "C",
    asset text collate "C" not null,
    exponent smallint not null,
    -- From our point of view: what left us is negative.
    amount_minor numeric(78) not null,
    at timestamptz not null,
    outcome json,
    -- The effect that explains it; null while none does.
    effect_id uuid references payonce.effects (id),
    run_id uuid not null,
    first_seen_at timestamptz not null default payonce.due_now(),
    primary key (vendor, kind, vendor_ref)
);

-- Two lines for one effect mean that it happened twice.
create unique index statement_lines_effect on payonce.statement_lines (effect_id) where effect_id is not null;

-- What is in suspense, and why: a line that nothing of ours explains, an effect that no line shows, a difference
-- between the two.
create table payonce.unmatched (
    id uuid primary key,
    vendor text collate "C" not null,
    mirror text collate "C" not null,
    direction text collate "C" not null check (direction in ('theirs', 'ours', 'difference')),
    kind text collate "C" not null,
    vendor_ref text collate "C",
    reference text collate "C",
    effect_id uuid references payonce.effects (id),
    asset text collate "C" not null,
    exponent smallint not null,
    -- By so much the mirror account was corrected, against suspense.
    amount_minor numeric(78) not null check (amount_minor <> 0),
    at timestamptz not null,
    first_seen_at timestamptz not null default payonce.due_now(),
    state text collate "C" not null default 'open' check (state in ('open', 'matched', 'written_off')),
    -- A person knows what it is, and it stays open.
    explained_by text collate "C",
    explanation text,
    -- Where a person wrote it off to.
    account text collate "C",
    closed_by text collate "C",
    closed_at timestamptz,
    note text,
    constraint unmatched_subject check (
        (direction = 'ours') = (vendor_ref is null) and (vendor_ref is not null or effect_id is not null)),
    constraint unmatched_closing check ((state = 'open') = (closed_at is null)),
    constraint unmatched_account check (state <> 'written_off' or account is not null)
);

create unique index unmatched_line on payonce.unmatched (vendor, kind, vendor_ref)
    where vendor_ref is not null and state in ('open', 'written_off');
create unique index unmatched_effect on payonce.unmatched (effect_id)
    where direction = 'ours' and state in ('open', 'written_off');
create index unmatched_open on payonce.unmatched (vendor, id) where state = 'open';

-- When an effect was known to have happened.
create index effect_attempts_happened on payonce.effect_attempts (created_at)
    where event in ('performed', 'found', 'answered');

-- Under which server this database was last served; null before it ever was.
create table payonce.served_identity (
    singleton boolean primary key default true check (singleton),
    identity text,
    -- The last time at which a process saw itself served by it. Never moved on under another one, so in a restored copy
    -- it says up to when the copy knows of everything.
    seen_at timestamptz
);
insert into payonce.served_identity default values;

create table payonce.quarantines (
    id bigint generated always as identity primary key,
    reason text not null,
    -- What the database knew of later than this may be lost.
    lost_since timestamptz not null,
    began_at timestamptz not null,
    -- Grows with every change: whoever decided on an older one decides again.
    revision bigint not null default 1,
    released_at timestamptz,
    released_by text collate "C",
    -- The reason of whoever released it although something was not reconciled.
    accepted text,
    constraint released_by_somebody check ((released_at is null) = (released_by is null))
);

create unique index quarantines_open on payonce.quarantines ((released_at is null)) where released_at is null;

-- A restored copy has another system, a promoted replica another timeline, a copy on the same server another database;
-- a plain restart changes none of them. Null where the server does not tell. The control file learns of a new timeline
-- only with the next checkpoint; the name of the current log file is never late.
create function payonce.server_identity() returns text
    language plpgsql volatile set search_path = pg_catalog, payonce, pg_temp
as $$
begin
    return format('system %s, timeline %s, database %s', (select system_identifier from pg_control_system()),
        left(pg_walfile_name(pg_current_wal_lsn()), 8),
        (select oid from pg_database where datname = current_database()));
exception
    when insufficient_privilege or feature_not_supported or undefined_function then
        return null;
end
$$;

-- The newest moment of which this database has a record. Only what one of our own clocks wrote is asked.
create function payonce.newest_record() returns timestamptz
    language sql volatile set search_path = pg_catalog, payonce, pg_temp
as $$
    select least(payonce.due_now(), coalesce(
        greatest(
            (select max(created_at) from (
                select created_at from payonce.effect_attempts order by id desc limit 1000) newest),
            (select max(posted_at) from (select posted_at from payonce.postings order by id desc limit 1000) newest),
            (select max(created_at) from (select created_at from payonce.audit_log order by id desc limit 1000) newest),
            (select max(created_at) from (select created_at from payonce.job_logs order by id desc limit 1000) newest)),
        (select max(applied_at) from payonce.migrations)))
$$;

-- What happened later than this may be unknown to a copy of this database.
create function payonce.lost_since() returns timestamptz
    language sql volatile set search_path = pg_catalog, payonce, pg_temp
as $$
    -- The margin is for vendors' clocks that go wrong, and for transactions that began before that and were lost.
    select coalesce(seen_at, payonce.newest_record()) - interval '1 hour' from payonce.served_identity
$$;

-- Whoever is about to send holds this lock shared from the look to the commit of the intent, and whoever begins a
-- quarantine holds it alone: afterwards nothing is recorded as intended that did not look. An advisory lock, because
-- intents are many and locking a row writes it; of the transaction, so that a pooler may lie in between.
create function payonce.sending_state(out began_at timestamptz, out reason text, out served text, out serving text)
    language plpgsql volatile set search_path = pg_catalog, payonce, pg_temp
as $$
begin
    perform pg_advisory_xact_lock_shared(31632371580035921);
    select q.began_at, q.reason into sending_state.began_at, sending_state.reason
    from payonce.quarantines q where q.released_at is null;
    select s.identity, payonce.server_identity() into served, serving from payonce.served_identity s;
end
$$;

-- Services change quarantines by these functions only, and each leaves a note.

-- Begins a quarantine, or begins the open one anew: what was reconciled before this moment does not count.
create function payonce.begin_quarantine(why text, who text, since timestamptz) returns void
    language plpgsql volatile security definer set search_path = pg_catalog, payonce, pg_temp
as $$
begin
    perform pg_advisory_xact_lock(31632371580035921);
    update payonce.quarantines
    set reason = reason || '; ' || why, lost_since = least(lost_since, since), began_at = payonce.due_now(),
        revision = revision + 1
    where released_at is null;
    if not found then
        insert into payonce.quarantines (reason, lost_since, began_at) values (why, since, payonce.due_now());
    end if;
    insert into payonce.audit_log (severity, location, reference, text, actor)
    values ('WARNING', 'quarantine.begin', current_database(), format('%s; lost since %s', why, since), who);
end
$$;

-- Only ever earlier. No row when it is not.
create function payonce.widen_quarantine(since timestamptz, who text) returns setof payonce.quarantines
    language plpgsql volatile security definer set search_path = pg_catalog, payonce, pg_temp
as $$
declare
    changed payonce.quarantines;
begin
    update payonce.quarantines set lost_since = since, revision = revision + 1
    where released_at is null and lost_since > since returning * into changed;
    if found then
        insert into payonce.audit_log (severity, location, reference, text, actor)
        values ('WARNING', 'quarantine.widen', changed.id::text, format('lost since %s', since), who);
        return next changed;
    end if;
end
$$;

-- No row when the quarantine has changed since it was seen. What stands in the way is the caller's to tell.
create function payonce.release_quarantine(which bigint, seen bigint, who text, why_accepted text, in_the_way text)
    returns setof payonce.quarantines
    language plpgsql volatile security definer set search_path = pg_catalog, payonce, pg_temp
as $$
declare
    changed payonce.quarantines;
begin
    update payonce.quarantines
    set released_at = payonce.due_now(), released_by = who, accepted = why_accepted, revision = revision + 1
    where id = which and revision = seen and released_at is null returning * into changed;
    if found then
        insert into payonce.audit_log (severity, location, reference, text, actor)
        values (case when in_the_way is null then 'INFO' else 'WARNING' end, 'quarantine.release', changed.id::text,
            case when in_the_way is null then 'everything was reconciled'
                 else format('%s, although %s', why_accepted, in_the_way) end, who);
        return next changed;
    end if;
end
$$;

-- Remembers the server that serves, and begins a quarantine when it is another one than before. True when it did.
create function payonce.notice_identity(who text) returns boolean
    language plpgsql volatile security definer set search_path = pg_catalog, payonce, pg_temp
as $$
declare
    serving constant text := payonce.server_identity();
    served text;
    since timestamptz;
begin
    if serving is null then
        return false;
    end if;
    update payonce.served_identity set identity = serving, seen_at = payonce.due_now()
    where coalesce(identity, serving) = serving;
    if found then
        return false;
    end if;
    perform pg_advisory_xact_lock(31632371580035921);
    select identity, payonce.lost_since() into served, since from payonce.served_identity for update;
    if served = serving then
        return false;
    end if;
    update payonce.served_identity set identity = serving, seen_at = payonce.due_now();
    perform payonce.begin_quarantine(
        format('this database was served by %s and is now served by %s', served, serving), who, since);
    return true;
end
$$;

-- For the owner, in the transaction that restores a backup.
create function payonce.after_restore() returns void
    language plpgsql volatile set search_path = pg_catalog, payonce, pg_temp
as $$
begin
    perform payonce.rebase_ledger();
    perform payonce.begin_quarantine('restored from a backup', 'payonce db restore', payonce.lost_since());
    update payonce.served_identity set identity = payonce.server_identity(), seen_at = payonce.due_now();
end
$$;

-- A backup from before quarantines, restored before this migration.
do $$
begin
    if to_regclass('payonce.restored') is not null then
        drop table payonce.restored;
        perform payonce.after_restore();
    end if;
end
$$;

revoke all on function payonce.server_identity(), payonce.newest_record(), payonce.lost_since(),
    payonce.sending_state(), payonce.begin_quarantine(text, text, timestamptz),
    payonce.widen_quarantine(timestamptz, text), payonce.release_quarantine(bigint, bigint, text, text, text),
    payonce.notice_identity(text), payonce.after_restore() from public;
grant execute on function payonce.server_identity(), payonce.sending_state(),
    payonce.begin_quarantine(text, text, timestamptz), payonce.widen_quarantine(timestamptz, text),
    payonce.release_quarantine(bigint, bigint, text, text, text), payonce.notice_identity(text) to payonce_service;
grant select, insert, update on payonce.statement_sources, payonce.statement_lines to payonce_service;
-- Which stretch a run goes over, and what an item is about, stays as it was written.
grant select, insert, update (reached, state, lines, found, adopted, unmatched, missing, settled, finished_at)
    on payonce.reconcile_runs to payonce_service;
grant select, insert, update (state, explained_by, explanation, account, closed_by, closed_at, note)
    on payonce.unmatched to payonce_service;
grant select on payonce.quarantines, payonce.served_identity to payonce_service;
