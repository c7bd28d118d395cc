-- Operators' brakes: freezes, velocity limits, and what waits for a second person.

create table payonce.freezes (
    id bigint generated always as identity primary key,
    -- Every condition that is given must match. None at all only where everything is meant, and said.
    everything boolean not null default false,
    vendor text collate "C",
    asset text collate "C",
    tenant text collate "C",
    service text collate "C",
    reason text not null,
    frozen_by text collate "C" not null,
    frozen_at timestamptz not null default payonce.due_now(),
    until timestamptz,
    lifted_by text collate "C",
    lifted_at timestamptz,
    lifted_why text,
    constraint freezes_say_what_they_mean check (everything = (num_nonnulls(vendor, asset, tenant, service) = 0)),
    constraint freezes_end_after_they_begin check (until > frozen_at),
    constraint lifted_freezes_say_by_whom check (num_nonnulls(lifted_by, lifted_at, lifted_why) in (0, 3))
);

create index freezes_in_force on payonce.freezes (id) where lifted_at is null;

-- The freeze that forbids a send, if there is one. Asked inside the intent transaction: the shared lock is kept to its
-- end, and whoever freezes takes the same lock ('freeze' in ASCII) alone. So an intent that commits after a freeze has
-- seen it. Being volatile the function looks after the lock was granted, and so sees what the freezer committed.
create function payonce.freeze_on(of_vendor text, of_asset text, of_tenant text, of_service text)
    returns setof payonce.freezes
    language plpgsql volatile
as $$
begin
    perform pg_advisory_xact_lock_shared(112641513454181);
    return query
        select * from payonce.freezes f
        where f.lifted_at is null and (f.until is null or f.until > payonce.due_now())
          and (f.vendor is null or f.vendor = of_vendor) and (f.asset is null or f.asset = of_asset)
          and (f.tenant is null or f.tenant = of_tenant) and (f.service is null or f.service = of_service)
        order by f.id limit 1;
end
$$;

create table payonce.velocity_limits (
    id bigint generated always as identity primary key,
    asset text collate "C" not null,
    exponent smallint not null,
    -- Null: of all vendors together.
    vendor text collate "C",
    window_s integer not null check (window_s > 0),
    most_minor numeric(78) not null check (most_minor >= 0),
    set_by text collate "C" not null,
    set_at timestamptz not null default payonce.due_now(),
    constraint velocity_limits_once unique nulls not distinct (asset, exponent, vendor, window_s)
);

-- What may have left within a window: an effect that is sent afresh counts from then.
create index effects_asset_first_attempt on payonce.effects (asset, first_attempt_at) where asset is not null;

create table payonce.approval_thresholds (
    asset text collate "C" not null,
    exponent smallint not null,
    above_minor numeric(78) not null check (above_minor >= 0),
    set_by text collate "C" not null,
    set_at timestamptz not null default payonce.due_now(),
    primary key (asset, exponent)
);

create table payonce.approvals (
    id bigint generated always as identity primary key,
    action text collate "C" not null,
    subject text collate "C" not null,
    -- What is granted is what was asked, to the byte.
    argument json not null,
    text text not null,
    amounts json not null,
    why text not null,
    asked_by text collate "C" not null,
    asked_at timestamptz not null default payonce.due_now(),
    expires_at timestamptz not null,
    state text collate "C" not null default 'waiting' check (state in ('waiting', 'granted', 'denied', 'expired')),
    decided_by text collate "C",
    decided_at timestamptz,
    decided_why text,
    result json,
    constraint a_second_person_decides check (lower(btrim(decided_by)) <> lower(btrim(asked_by))),
    constraint decisions_have_a_person check ((state in ('granted', 'denied')) = (decided_by is not null)),
    constraint approvals_expire_after_they_are_asked check (expires_at > asked_at)
);

create unique index approvals_waiting on payonce.approvals (action, subject) where state = 'waiting';
create index approvals_state on payonce.approvals (state, id);

create trigger approvals_are_decided_once before update on payonce.approvals
    for each row when (old.state <> 'waiting') execute function payonce.refuse_rewriting();

-- Freezes are lifted and approvals decided; what was said when they were made stays.
grant select, insert, update (lifted_by, lifted_at, lifted_why) on payonce.freezes to payonce_service;
grant select, insert, update, delete on payonce.velocity_limits, payonce.approval_thresholds to payonce_service;
-- What is asked waits: nobody writes it down as decided already.
grant select, insert (action, subject, argument, text, amounts, why, asked_by, expires_at),
    update (state, decided_by, decided_at, decided_why, result) on payonce.approvals to payonce_service;
