-- What migration 0016 added: people, their sessions, and logins that failed.

insert into payonce.people (name, role, password, added_by, added_at, password_at)
values ('ann', 'approver', 'scrypt$32768$8$1$AAAA$AAAA', 'root', '2026-01-01T00:00Z', '2026-01-02T00:00Z');

insert into payonce.sessions (token_hash, person, begun_at, seen_at, ends_at)
values (decode(repeat('ab', 32), 'hex'), 'ann', '2026-01-02T00:00Z', '2026-01-02T01:00Z', '2026-01-02T12:00Z');

insert into payonce.login_failures (name, address, failed_at) values ('ann', '192.0.2.1', '2026-01-02T00:00Z');
