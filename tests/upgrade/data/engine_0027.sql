-- What migration 0027 added: a network from which an account has logged in.

insert into payonce.login_networks (endpoint, name, network, last_at)
values ('console', repeat('ab', 32), '192.0.2.1', '2026-01-02T00:00Z');
