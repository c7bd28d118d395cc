-- One row per card: its state, and the mint's code.

create schema giftcards;

create table giftcards.cards (
    id text collate "C" primary key,
    holder text not null,
    asset text collate "C" not null,
    exponent smallint not null,
    amount_minor numeric(78) not null check (amount_minor > 0),
    state text collate "C" not null default 'ordered'
        check (state in ('ordered', 'issuing', 'issued', 'refused', 'expired')),
    reason text,
    code text collate "C" unique,
    issued_at timestamptz,
    tenant text collate "C",
    created_at timestamptz not null default payonce.due_now(),
    constraint issued_cards_have_a_code check (
        (code is not null and issued_at is not null) = (state in ('issued', 'expired'))),
    constraint refusals_have_a_reason check ((reason is not null) = (state = 'refused'))
);

create index cards_to_expire on giftcards.cards (issued_at) where state = 'issued';

grant usage on schema giftcards to payonce_service;
grant select, insert, update on giftcards.cards to payonce_service;
