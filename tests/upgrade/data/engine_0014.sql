-- What migration 0014 added: API keys and the answers kept for idempotency keys.

insert into payonce.api_keys (
    id, prefix, digest, holder, tenant, scopes, made_by, made_at, expires_at, last_used_at, revoked_by, revoked_at,
    revoked_why)
values
    ('00000000-0000-7000-8000-00000000a001', 'abcdefgh', sha256('sk_abcdefgh_'::bytea), 'shop', 'acme',
     array['transfers:read', 'transfers:write'], 'ada', '2026-01-01T00:00Z', '2027-01-01T00:00Z',
     '2026-01-01T05:00Z', null, null, null),
    ('00000000-0000-7000-8000-00000000a002', 'zzzz2345', sha256('sk_zzzz2345_'::bytea), 'bob', null,
     array['queues:read'], 'ada', '2026-01-01T00:00Z', null, null, 'ada', '2026-01-02T00:00Z', 'left the house');

insert into payonce.http_answers (
    caller, key, fingerprint, status, media_type, location, body, trace_id, created_at, expires_at)
values
    ('tenant acme', 'order-7', sha256('x'::bytea), 201, 'application/json', '/v1/transfers/1', '{"id": "1"}',
     '00000000-0000-7000-8000-00000000aaaa', '2026-01-01T00:00Z', '2026-01-03T00:00Z');
