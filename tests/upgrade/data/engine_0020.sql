-- Migration 0020 gave the outbox another order of its key: still one message may go to two places.

insert into payonce.outbox (relay, id, state, ready_at, try_at, queue, action, created_at, payload)
select relay, '00000000-0000-7000-8000-000000000201', 'waiting', '2026-01-01T00:00Z', '2026-01-01T00:00Z',
    'escrow.settled', 'settled', '2026-01-01T00:00Z', '{}'
from unnest(array['events', 'redis']) as relay;
