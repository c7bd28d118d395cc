-- Who may use the console, where they are logged in, and logins that failed.

create table payonce.people (
    -- Lower case, because a second person is told from the first by name, whatever its case.
    name text collate "C" primary key check (name = lower(btrim(name)) and name <> ''),
    role text collate "C" not null check (role in ('viewer', 'operator', 'approver')),
    -- The hash, with the parameters it was made with.
    password text not null,
    added_by text collate "C" not null,
    added_at timestamptz not null default payonce.due_now(),
    password_at timestamptz not null default payonce.due_now()
);

create table payonce.sessions (
    -- Of the token that only the browser has.
    token_hash bytea primary key check (length(token_hash) = 32),
    person text collate "C" not null references payonce.people (name) on delete cascade,
    begun_at timestamptz not null default payonce.due_now(),
    seen_at timestamptz not null default payonce.due_now(),
    ends_at timestamptz not null,
    constraint sessions_end_after_they_begin check (ends_at > begun_at)
);

create index sessions_person on payonce.sessions (person);

-- Written before the password is looked at, and taken back when it was right: many guesses at once are counted too.
create table payonce.login_failures (
    id bigint generated always as identity primary key,
    name text collate "C" not null,
    address text collate "C" not null,
    failed_at timestamptz not null default payonce.due_now()
);

create index login_failures_address on payonce.login_failures (address, failed_at);
create index login_failures_time on payonce.login_failures (failed_at);

grant select, insert, update (role, password, password_at), delete on payonce.people to payonce_service;
grant select, insert, update (seen_at), delete on payonce.sessions to payonce_service;
grant select, insert, delete on payonce.login_failures to payonce_service;
