-- What migration 0022 added: the token of a committed transaction.

insert into payonce.commits (token, written_at) values
    ('01948a00-0000-7000-8000-000000000022', '2026-01-01T00:00:00Z');
