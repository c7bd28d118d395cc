-- What migration 0015 added: webhooks' endpoints, secrets, events, deliveries and attempts.

insert into payonce.webhook_endpoints (
    id, tenant, url, events, description, state, reason, changed_at, failing_since, created_by, created_at)
values
    ('00000000-0000-7000-8000-0000000000d1', 'default', 'https://shop.example/hook', '{invoice.*,plan.changed}', 'the shop',
     'enabled', null, '2026-01-01T00:00Z', '2026-01-01T01:00Z', 'ada', '2026-01-01T00:00Z'),
    ('00000000-0000-7000-8000-0000000000d2', 'acme', 'https://acme.example/', '{*}', '', 'disabled',
     'it answered 410 Gone', '2026-01-01T02:00Z', null, 'ada', '2026-01-01T00:00Z');

insert into payonce.webhook_secrets (endpoint_id, number, sealed, created_at, expires_at)
values
    ('00000000-0000-7000-8000-0000000000d1', 1, '\x0101', '2026-01-01T00:00Z', '2026-01-02T00:00Z'),
    ('00000000-0000-7000-8000-0000000000d1', 2, '\x0102', '2026-01-01T00:00Z', null);

insert into payonce.webhook_events (id, tenant, type, body, trace_id, created_at)
values ('evt_1', 'default', 'invoice.paid', '\x7b7d', 'trace-1', '2026-01-01T00:30Z');

insert into payonce.webhook_deliveries (
    id, event_id, endpoint_id, state, reason, attempts, last_status, replay_of, created_at, ended_at)
values
    ('00000000-0000-7000-8000-0000000000f1', 'evt_1', '00000000-0000-7000-8000-0000000000d1', 'failed',
     'given up after 8 attempts', 1, 500, null, '2026-01-01T00:30Z', '2026-01-02T04:00Z'),
    ('00000000-0000-7000-8000-0000000000f2', 'evt_1', '00000000-0000-7000-8000-0000000000d1', 'pending', null, 0, null,
     '00000000-0000-7000-8000-0000000000f1', '2026-01-03T00:00Z', null);

insert into payonce.webhook_attempts (delivery_id, number, at, status, latency_ms, error, excerpt)
values ('00000000-0000-7000-8000-0000000000f1', 1, '2026-01-01T00:30Z', 500, 12, 'answered 500', 'oops');
