-- Calls that change the outside world: recorded before they happen, and every try of them.

create table payonce.effects (
    id uuid primary key,
    kind text collate "C" not null,
    key text collate "C" not null,
    generation integer not null default 1 check (generation > 0),
    version integer not null,
    safety text collate "C" not null check (safety in ('keyed', 'findable', 'rebroadcast', 'harmless', 'blind')),
    state text collate "C" not null default 'intended'
        check (state in ('intended', 'performed', 'refused', 'unknown', 'review', 'abandoned')),
    -- Of two effects with one scope only one may be open.
    scope text collate "C",
    -- json, not jsonb: what is sent again is what was sent, to the byte.
    request json not null,
    outcome json,
    vendor_ref text collate "C",
    -- Why it was refused, abandoned or put before a person.
    reason text,
    review_cause text collate "C",
    -- Grows with every change: whoever decided on an older one decides again.
    revision bigint not null default 1,
    attempt integer not null default 1 check (attempt > 0),
    -- From here a vendor's memory of our key is counted.
    first_attempt_at timestamptz not null,
    -- The last moment at which a send of ours may have left; null when provably none did.
    sent_until timestamptz,
    -- Somebody sends or fences until then; null when nobody does.
    busy_until timestamptz,
    -- Until when the vendor recognises our key; null where there is none.
    key_valid_until timestamptz,
    -- A next generation may begin.
    superseded boolean not null default false,
    message_id uuid not null,
    trace_id text collate "C" not null,
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    constraint effects_generation unique (kind, key, generation),
    constraint performed_effects_have_an_outcome check (state <> 'performed' or outcome is not null),
    constraint reviews_have_a_cause check ((state = 'review') = (review_cause is not null))
);

create unique index effects_vendor_ref on payonce.effects (kind, vendor_ref) where vendor_ref is not null;
-- A late contradiction may reopen an effect while another one of its scope is open, and must never be refused for that:
-- reviews are looked for when an effect begins instead.
create unique index effects_open_scope on payonce.effects (scope)
    where scope is not null and state in ('intended', 'unknown');
create index effects_scope on payonce.effects (scope) where scope is not null;
create index effects_message on payonce.effects (message_id);
create index effects_trace on payonce.effects (trace_id);
create index effects_open on payonce.effects (state, id) where state in ('intended', 'unknown', 'review');

create table payonce.effect_attempts (
    id bigint generated always as identity primary key,
    effect_id uuid not null references payonce.effects (id),
    attempt integer not null,
    event text collate "C" not null check (event in (
        'started', 'performed', 'refused', 'not_sent', 'unknown', 'found', 'did_not', 'cannot_tell', 'fenced',
        'abandoned', 'gave_up', 'answered')),
    -- Redacted before it comes here.
    detail text,
    outcome json,
    vendor_ref text collate "C",
    message_id uuid,
    -- The claim's token: two runs of one message are told apart by it.
    token bigint,
    created_at timestamptz not null default payonce.due_now()
);

create index effect_attempts_effect on payonce.effect_attempts (effect_id, id);

create function payonce.refuse_rewriting() returns trigger
    language plpgsql
as $$
begin
    raise exception '% is append-only: what happened is not rewritten', tg_table_name
        using errcode = 'insufficient_privilege';
end
$$;

create trigger effect_attempts_append_only before update or delete or truncate on payonce.effect_attempts
    for each statement execute function payonce.refuse_rewriting();

grant select, insert, update on payonce.effects to payonce_service;
grant select, insert on payonce.effect_attempts to payonce_service;
