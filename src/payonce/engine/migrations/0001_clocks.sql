-- The two clocks. Everything that asks the time in SQL asks one of these, so that tests can move them.
-- STABLE and a plain SELECT: the planner inlines them, and an index on a time column stays usable.

create function payonce.due_now() returns timestamptz
    language sql stable parallel safe
    return statement_timestamp();

create function payonce.lease_now() returns timestamptz
    language sql stable parallel safe
    return statement_timestamp();

comment on function payonce.due_now() is 'when messages and schedules fall due';
comment on function payonce.lease_now() is 'when leases end; apart from due_now, so that a test may advance an hour without ending healthy leases';

create table payonce.installation (
    singleton boolean primary key default true check (singleton),
    id uuid not null default gen_random_uuid(),
    purpose text not null default 'production' check (purpose in ('production', 'test'))
);
insert into payonce.installation default values;

grant select on payonce.installation to payonce_service;
