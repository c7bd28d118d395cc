-- Each service's own job log with the engine's new column, which can only come last in a view that is there already.

create or replace view subscriptions.job_logs as
    select id, queue, message_id, correlation_id, idempotency_key, trace_id, status, attempts, last_error,
        next_retry_at, action, worker, started_at, created_at, updated_at, info
    from payonce.job_logs where queue like 'q:sub:%';

create or replace view payments.job_logs as
    select id, queue, message_id, correlation_id, idempotency_key, trace_id, status, attempts, last_error,
        next_retry_at, action, worker, started_at, created_at, updated_at, info
    from payonce.job_logs where queue like 'q:pay:%';
