-- The ledger sealed into a hash chain of its own: each seal covers the postings it names, with all their lines, and the
-- seal before it. Nothing is added to the tables that postings are written to, so a posting costs what it cost before.

create table payonce.ledger_seals (
    number bigint primary key check (number > 0),
    -- The seal before it. Unique: nobody can put two after the same one, so the chain has no branches.
    previous bytea unique,
    -- How postings and seals were encoded for their hashes.
    format smallint not null check (format > 0),
    -- Ids in ascending order. Every posting behind the last one of the seal before, up to the last one here, is named:
    -- one that is not was inserted later. Arrays, so that a posting costs neither a row here nor entries in indexes.
    postings bigint[] not null check (cardinality(postings) > 0 and array_position(postings, null) is null),
    -- 32 bytes for each posting, in the same order.
    digests bytea not null,
    hash bytea not null unique check (length(hash) = 32),
    sealed_at timestamptz not null,
    constraint a_digest_for_each_posting check (length(digests) = 32 * cardinality(postings)),
    constraint only_the_first_ledger_seal_has_none_before check ((number = 1) = (previous is null)),
    constraint ledger_seals_follow_a_seal foreign key (previous) references payonce.ledger_seals (hash)
);

-- Hashes cannot be compressed: trying costs time and gains nothing.
alter table payonce.ledger_seals alter column digests set storage external;

create trigger ledger_seals_append_only before update or delete or truncate on payonce.ledger_seals
    for each statement execute function payonce.refuse_rewriting();

grant select, insert on payonce.ledger_seals to payonce_service;
-- Sealing reads how far ids were handed out.
grant select on sequence payonce.postings_id_seq to payonce_service;
