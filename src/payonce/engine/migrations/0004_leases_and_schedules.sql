-- Named leases with epochs, and what is put by the clock.

-- Rows stay after a release: an epoch that began anew would let an old holder through the fence.
create table payonce.leases (
    name text collate "C" primary key,
    holder text not null,
    epoch bigint not null check (epoch > 0),
    expires_at timestamptz not null
);

create table payonce.schedules (
    name text collate "C" primary key,
    -- As declared; a changed rule begins at its own next time.
    rule text not null,
    next_at timestamptz not null,
    last_at timestamptz
);

grant select, insert, update on payonce.leases to payonce_service;
grant select, insert, update, delete on payonce.schedules to payonce_service;
