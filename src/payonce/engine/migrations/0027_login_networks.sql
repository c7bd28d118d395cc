-- Networks from which an account has logged in. Failed logins of others from the same network do not lock it out.

create table payonce.login_networks (
    -- The login form: 'console', or one that a service names.
    endpoint text collate "C" not null,
    -- The digest of the account's name, as in login_failures.
    name text collate "C" not null,
    network text collate "C" not null,
    last_at timestamptz not null default payonce.due_now(),
    primary key (endpoint, name, network)
);

create index login_networks_time on payonce.login_networks (last_at);

grant select, insert, update (last_at), delete on payonce.login_networks to payonce_service;
