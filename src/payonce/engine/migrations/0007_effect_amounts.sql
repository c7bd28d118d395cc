-- What brakes, limits and reconciliation ask about an effect, and what a later run must know of what was said about it.
-- Effects of before have only what their kind says.

alter table payonce.effects
    add column vendor text collate "C" not null generated always as (split_part(kind, '.', 1)) stored,
    add column service text collate "C",
    add column tenant text collate "C",
    add column asset text collate "C",
    add column exponent smallint,
    -- What it moves, in minor units; null where it moves nothing.
    add column amount_minor numeric(78) check (amount_minor >= 0),
    -- So long after the last send a vendor's silence proves nothing; null where it cannot be asked.
    add column horizon_s double precision,
    -- A person said that no send of before happened: behind the horizon it may go out again without the vendor's fence.
    add column ruled_out boolean not null default false,
    -- The vendor takes nothing under its reference any more, also not what comes late.
    add column burnt boolean not null default false,
    -- The handler's intent is still to run before the handler learns the end.
    add column intent_due boolean not null default false,
    add constraint amounts_have_an_asset check (
        (amount_minor is null) = (asset is null) and (asset is null) = (exponent is null));

create index effects_asset_time on payonce.effects (asset, created_at) where asset is not null;
create index effects_vendor_time on payonce.effects (vendor, created_at);
