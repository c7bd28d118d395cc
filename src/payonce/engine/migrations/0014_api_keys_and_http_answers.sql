-- Who may call over HTTP, and the answers that are given again to the same request.

create table payonce.api_keys (
    id uuid primary key,
    -- The part of the key that may be shown: it names the key, and finds it.
    prefix text collate "C" not null unique check (prefix ~ '^[a-z2-7]{8}$'),
    -- SHA-256 of the whole key. The key is 256 random bits, so there is nothing to guess and nothing to slow down.
    digest bytea not null check (octet_length(digest) = 32),
    -- Whoever acts with it: what they do is in their name, whichever of their keys they use.
    holder text collate "C" not null,
    -- Null: of the house, not of one tenant.
    tenant text collate "C",
    scopes text[] collate "C" not null check (cardinality(scopes) > 0),
    made_by text collate "C" not null,
    made_at timestamptz not null default payonce.due_now(),
    expires_at timestamptz,
    -- To the hour: a write for every request would cost more than it tells.
    last_used_at timestamptz,
    revoked_by text collate "C",
    revoked_at timestamptz,
    revoked_why text,
    constraint keys_end_after_they_begin check (expires_at > made_at),
    constraint revoked_keys_say_by_whom check (num_nonnulls(revoked_by, revoked_at, revoked_why) in (0, 3))
);

create trigger revoked_keys_stay_revoked before update of revoked_by, revoked_at, revoked_why on payonce.api_keys
    for each row when (old.revoked_at is not null) execute function payonce.refuse_rewriting();

create table payonce.http_answers (
    -- Whose keys these are: tenants do not see each other's.
    caller text collate "C" not null,
    key text collate "C" not null,
    -- SHA-256 of method, path, query and body.
    fingerprint bytea not null check (octet_length(fingerprint) = 32),
    status smallint not null check (status between 200 and 499),
    media_type text collate "C" not null,
    location text,
    body bytea not null,
    trace_id text collate "C",
    created_at timestamptz not null default payonce.due_now(),
    expires_at timestamptz not null,
    primary key (caller, key)
);

create index http_answers_expires on payonce.http_answers (expires_at);

-- A key's digest, tenant and scopes stay as they were made; an answer is never rewritten.
grant select, insert (id, prefix, digest, holder, tenant, scopes, made_by, expires_at),
    update (last_used_at, revoked_by, revoked_at, revoked_why) on payonce.api_keys to payonce_service;
grant select, insert, delete on payonce.http_answers to payonce_service;
