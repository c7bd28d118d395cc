-- What migration 0026 added: the declared actions of a queue, and a redrive that was half done.

insert into payonce.queues (name, lease_s, key_retention_s, log, policy, backend, actions)
    values ('upgrade-contracts', 30, 86400, 'all', '{}', 'postgres', '{initial,renewal}');

insert into payonce.queue_operations
    (kind, queue, message_state, which, asked_by, why, total, changed, created_at, updated_at) values
    ('redrive', 'upgrade-contracts', 'parked', '{"action": "renewal"}', 'ops', 'the gateway is back', 60000, 5000,
     '2026-01-06T00:00Z', '2026-01-06T00:01Z');
