-- One row per payout, the parts it is swapped in, the swaps and whom each serves, and the three tables that the callers
-- of before know by name. Amounts are whole minor units, USDT's millionths and wei; what people read is NUMERIC(38,18).

create schema payouts;

create table payouts.payouts (
    id text collate "C" primary key check (length(id) between 1 and 100),
    -- Derived from the payment, so that two payouts of one payment meet here.
    unique_id char(16) collate "C" not null unique check (unique_id ~ '^[A-Z0-9]{16}$'),
    -- Null when the caller sends none: then the natural key tells repetitions.
    payment_id text collate "C" unique check (length(payment_id) between 1 and 200),
    -- A hash of everything that was asked for but its time.
    natural_key text collate "C" not null,
    user_id bigint not null,
    closed_channel_id text collate "C" not null check (length(closed_channel_id) between 1 and 64),
    wallet_address text collate "C" not null check (length(wallet_address) between 1 and 200),
    extra_id text collate "C" check (length(extra_id) between 1 and 120),
    -- Whether somebody spoke of a memo at all: a missing one may be forgotten, an empty one says that none is needed.
    says_extra_id boolean not null default false,
    payout_currency text collate "C" not null check (payout_currency ~ '^[a-z0-9]{1,30}$'),
    payout_network text collate "C" not null check (payout_network ~ '^[a-z0-9]{1,30}$'),
    price_minor numeric(78) not null check (price_minor > 0),
    fee_minor numeric(78) not null check (fee_minor >= 0),
    adjusted_minor numeric(78) not null check (adjusted_minor > 0),
    -- In wei; null until it is priced.
    value_minor numeric(78) check (value_minor > 0),
    state text collate "C" not null default 'received' check (state in (
        'received', 'priced', 'swap_creating', 'swapped', 'paying', 'paid_in', 'finished', 'accumulating', 'held',
        'rejected', 'refunded', 'review')),
    -- Where it goes on when a person lets it.
    held_from text collate "C" check (held_from in (
        'received', 'priced', 'swap_creating', 'swapped', 'paying', 'paid_in')),
    -- What kind of thing keeps it, such as bad_address; the words are in `reason`.
    hold text collate "C",
    reason text,
    -- How often a message for it was put anew, by the janitor or a person; part of the message's key.
    puts integer not null default 0 check (puts >= 0),
    -- Grows with every move: a person's decision is about what they saw.
    revision integer not null default 0 check (revision >= 0),
    trace_id text collate "C",
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    constraint fee_and_rest_are_the_price check (fee_minor + adjusted_minor = price_minor),
    constraint priced_before_swapped check (
        value_minor is not null or state in ('received', 'held', 'review', 'rejected', 'refunded')),
    constraint holds_say_where_and_why check (
        (state in ('held', 'review')) = (held_from is not null)
        and (state not in ('held', 'review', 'rejected', 'refunded') or reason is not null)
        and (state in ('held', 'review')) = (hold is not null))
);

create index payouts_open on payouts.payouts (state, updated_at)
    where state not in ('finished', 'rejected', 'refunded');
create index payouts_created on payouts.payouts (created_at, id);
create index payouts_natural_key on payouts.payouts (natural_key, created_at);
create index payouts_clients on payouts.payouts (payout_currency, payout_network, wallet_address)
    where state = 'accumulating';

-- What of a payout is swapped at once. Most have one part; one that the exchange calls too large has several.
create table payouts.parts (
    payout_id text collate "C" not null references payouts.payouts (id),
    part smallint not null check (part between 1 and 100),
    amount_minor numeric(78) not null check (amount_minor > 0),
    primary key (payout_id, part)
);

-- One exchange at ChangeNOW, asked for or made, or one payment that needs none (`direct`). The first payout it serves
-- leads: the swap runs under its unique_id.
create table payouts.swaps (
    -- `unique_id/part/round`: also the key of the effect that creates it.
    id text collate "C" primary key,
    unique_id char(16) collate "C" not null references payouts.payouts (unique_id),
    part smallint not null check (part > 0),
    -- Grows when a swap is replaced by another.
    round smallint not null check (round > 0),
    currency text collate "C" not null,
    network text collate "C" not null,
    address text collate "C" not null,
    extra_id text collate "C",
    amount_minor numeric(78) not null check (amount_minor > 0),
    -- The client gets the very coin that the wallet pays: no exchange is asked.
    direct boolean not null default false,
    state text collate "C" not null default 'creating' check (state in (
        'creating', 'created', 'paying', 'paid_in', 'finished', 'abandoned', 'lapsed', 'returned')),
    active boolean not null default true,
    cn_api_id text collate "C" unique,
    payin_address text collate "C",
    payin_extra_id text collate "C",
    valid_until timestamptz,
    -- When hostpay was told of it. From then on nothing replaces it but hostpay's own word that nothing was paid.
    triggered_at timestamptz,
    reason text,
    -- Why hostpay has not paid it yet, such as a wallet that holds too little.
    waits_for text,
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    unique (unique_id, part, round),
    unique (id, active),
    constraint active_until_replaced check (active = (state not in ('abandoned', 'lapsed', 'returned'))),
    constraint made_before_paid check (
        state in ('creating', 'abandoned') or (cn_api_id is not null and payin_address is not null)),
    constraint replaced_only_before_hostpay check (state <> 'abandoned' or triggered_at is null),
    constraint told_before_paid check (
        state not in ('paying', 'paid_in', 'finished', 'lapsed', 'returned') or triggered_at is not null)
);

create index swaps_open on payouts.swaps (state, updated_at) where active and state <> 'finished';

create index swaps_waiting on payouts.swaps (id) where state = 'created' and waits_for is not null;

-- Whom a swap serves, and with how much of it. `active` follows the swap, so that the index below means something.
create table payouts.shares (
    swap_id text collate "C" not null,
    payout_id text collate "C" not null,
    part smallint not null,
    amount_minor numeric(78) not null check (amount_minor > 0),
    active boolean not null default true,
    primary key (swap_id, payout_id, part),
    foreign key (swap_id, active) references payouts.swaps (id, active) on update cascade,
    foreign key (payout_id, part) references payouts.parts (payout_id, part)
);

create unique index one_active_swap_per_part on payouts.shares (payout_id, part) where active;

create table payouts.split_payout_request (
    unique_id char(16) collate "C" primary key references payouts.payouts (unique_id),
    user_id bigint not null,
    closed_channel_id text collate "C" not null,
    from_currency text collate "C" not null,
    to_currency text collate "C" not null,
    from_network text collate "C" not null,
    to_network text collate "C" not null,
    from_amount numeric(38, 18) not null,
    -- The pure market value: in ETH, whatever to_currency says.
    to_amount numeric(38, 18) not null,
    to_asset text collate "C" not null default 'ETH' check (to_asset = 'ETH'),
    client_wallet_address text collate "C" not null,
    refund_address text collate "C" not null,
    flow text collate "C" not null,
    type text collate "C" not null,
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now()
);

create table payouts.split_payout_que (
    unique_id char(16) collate "C" not null references payouts.split_payout_request (unique_id),
    cn_api_id text collate "C" not null,
    user_id bigint not null,
    closed_channel_id text collate "C" not null,
    from_currency text collate "C" not null,
    to_currency text collate "C" not null,
    from_network text collate "C" not null,
    to_network text collate "C" not null,
    from_amount numeric(38, 18) not null,
    -- What the client gets, by the exchange's word.
    to_amount numeric(38, 18) not null,
    payin_address text collate "C" not null,
    payout_address text collate "C" not null,
    refund_address text collate "C" not null,
    flow text collate "C" not null,
    type text collate "C" not null,
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    primary key (unique_id, cn_api_id)
);

create table payouts.split_payout_hostpay (
    unique_id char(16) collate "C" not null,
    cn_api_id text collate "C" not null,
    from_currency text collate "C" not null,
    from_network text collate "C" not null,
    from_amount numeric(38, 18) not null,
    payin_address text collate "C" not null,
    is_complete boolean not null default false,
    tx_hash text collate "C",
    tx_status text collate "C",
    gas_used numeric(78),
    block_number bigint,
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    primary key (unique_id, cn_api_id),
    foreign key (unique_id, cn_api_id) references payouts.split_payout_que (unique_id, cn_api_id)
);

-- What ChangeNOW said last that it changes; intake looks here, so that an unreachable vendor refuses nobody.
create table payouts.currencies (
    ticker text collate "C" not null,
    network text collate "C" not null,
    name text not null,
    has_extra_id boolean not null,
    decimals smallint,
    -- Whether one can get it; what cannot be got is no payout currency.
    payable boolean not null,
    seen_at timestamptz not null default payonce.due_now(),
    primary key (ticker, network)
);

grant usage on schema payouts to payonce_service;
grant select, insert, update on payouts.payouts, payouts.parts, payouts.swaps, payouts.shares,
    payouts.split_payout_request, payouts.split_payout_que, payouts.split_payout_hostpay to payonce_service;
grant select, insert, update, delete on payouts.currencies to payonce_service;
