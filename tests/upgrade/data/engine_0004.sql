-- What migration 0004 added: leases and schedules.

insert into payonce.leases (name, holder, epoch, expires_at) values ('janitors', 'w-1', 7, '2026-01-01T00:00:05Z');
insert into payonce.schedules (name, rule, next_at, last_at) values
    ('renewals', 'every 86400 s', '2026-01-02T00:00Z', '2026-01-01T00:00Z');
