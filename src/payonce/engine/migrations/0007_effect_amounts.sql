-- What brakes, limits and reconciliation ask about an effect. Effects of before have only what their kind says.

alter table payonce.effects
    add column vendor text collate "C" not null generated always as (split_part(kind, '.', 1)) stored,
    add column service text collate "C",
    add column tenant text collate "C",
    add column asset text collate "C",
    add column exponent smallint,
    -- What it moves, in minor units; null where it moves nothing.
    add column amount_minor numeric(78) check (amount_minor >= 0),
    add constraint amounts_have_an_asset check (
        (amount_minor is null) = (asset is null) and (asset is null) = (exponent is null));

create index effects_asset_time on payonce.effects (asset, created_at) where asset is not null;
create index effects_vendor_time on payonce.effects (vendor, created_at);
