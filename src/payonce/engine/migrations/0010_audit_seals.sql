-- The audit log sealed into a hash chain: each seal covers the notes it names and the seal before it.

create table payonce.audit_seals (
    number bigint primary key check (number > 0),
    -- The seal before it. Unique: nobody can put two after the same one, so the chain has no branches.
    previous bytea unique,
    -- How notes and seals were encoded for their hashes.
    format smallint not null check (format > 0),
    notes integer not null check (notes >= 0),
    -- Every note of `server` whose transaction lies below the horizon is in this seal or an earlier one. Another server
    -- counts its transactions anew, so after a move this says nothing until a seal was made there.
    server text collate "C" not null,
    horizon xid8 not null,
    hash bytea not null unique check (length(hash) = 32),
    sealed_at timestamptz not null,
    constraint only_the_first_has_none_before check ((number = 1) = (previous is null)),
    constraint seals_follow_a_seal foreign key (previous) references payonce.audit_seals (hash)
);

-- What a seal covers is named and not derived: ids and transactions say nothing any more after a move to another server.
create table payonce.audit_sealed (
    seal bigint not null references payonce.audit_seals (number),
    place integer not null check (place > 0),
    -- Unique: a note is sealed once.
    note bigint not null unique references payonce.audit_log (id),
    digest bytea not null check (length(digest) = 32),
    primary key (seal, place)
);

create trigger audit_seals_append_only before update or delete or truncate on payonce.audit_seals
    for each statement execute function payonce.refuse_rewriting();
create trigger audit_sealed_append_only before update or delete or truncate on payonce.audit_sealed
    for each statement execute function payonce.refuse_rewriting();

create index audit_log_xact on payonce.audit_log (xact, id);
create index audit_log_time on payonce.audit_log (created_at, id);

-- Who writes a note chooses neither its number, its transaction nor its time: a note with an old transaction would lie
-- below the horizon and never be sealed.
revoke insert on payonce.audit_log from payonce_service;
grant insert (severity, location, reference, text, actor) on payonce.audit_log to payonce_service;
grant select, insert on payonce.audit_seals, payonce.audit_sealed to payonce_service;
