-- Calls to vendors by minute, counted by every process: an outage shows on the overview whichever process meets it.

create table payonce.vendor_minutes (
    minute timestamptz not null,
    vendor text collate "C" not null,
    call text collate "C" not null,
    outcome text collate "C" not null,
    calls bigint not null default 0 check (calls >= 0),
    primary key (minute, vendor, call, outcome)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

grant select, insert, update, delete on payonce.vendor_minutes to payonce_service;
