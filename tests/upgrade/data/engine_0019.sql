-- What migration 0019 added: a run that has something to say.

insert into payonce.job_logs (queue, message_id, correlation_id, status, attempts, info, action, worker, created_at,
                              updated_at)
values ('pay', '00000000-0000-7000-8000-000000000191', 'pump_delayed_queues', 'success', 1,
        '3 messages came from the delayed ones', 'pump_delayed_queues', 'w-1', '2026-01-01T00:00Z', '2026-01-01T00:00Z');
