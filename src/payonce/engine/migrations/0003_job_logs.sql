-- One row per ended run. Daily partitions are dropped by age; the default one catches what no partition covers.

create table payonce.job_logs (
    id bigint generated always as identity,
    queue text collate "C" not null,
    message_id uuid not null,
    correlation_id text collate "C",
    idempotency_key text collate "C",
    trace_id text collate "C",
    status text collate "C" not null check (status in ('success', 'retry', 'failed', 'parked')),
    attempts integer not null,
    last_error text,
    next_retry_at timestamptz,
    action text not null,
    worker text,
    started_at timestamptz,
    created_at timestamptz not null,
    updated_at timestamptz not null
) partition by range (created_at);

create table payonce.job_logs_default partition of payonce.job_logs default;

-- Newest first is how people read a log; appending to the right edge of an index costs next to nothing.
create index job_logs_id on payonce.job_logs (id);
create index job_logs_message on payonce.job_logs (message_id);
create index job_logs_trace on payonce.job_logs (trace_id) where trace_id is not null;
create index job_logs_failures on payonce.job_logs (queue, status, id) where status <> 'success';
create index job_logs_correlation on payonce.job_logs (correlation_id) where correlation_id is not null;
create index job_logs_idempotency_key on payonce.job_logs (idempotency_key) where idempotency_key is not null;

-- Services are not owners, so the two things only an owner may do to partitions are functions of the owner.
create function payonce.add_job_log_partition(day date) returns boolean
    language plpgsql security definer set search_path = pg_catalog, payonce, pg_temp
as $$
declare
    partition_name text := 'job_logs_' || to_char(day, 'YYYYMMDD');
    day_start timestamptz := day::timestamp at time zone 'UTC';
    day_end timestamptz := (day + 1)::timestamp at time zone 'UTC';
begin
    if to_regclass('payonce.' || quote_ident(partition_name)) is not null then
        return false;
    end if;
    lock table payonce.job_logs in share update exclusive mode;
    if to_regclass('payonce.' || quote_ident(partition_name)) is not null then
        return false;
    end if;
    -- Attaching wants this lock in any case; taken before the rows are moved, no writer can add one in between.
    lock table payonce.job_logs_default in access exclusive mode;
    execute format('create table payonce.%I (like payonce.job_logs including defaults including constraints)', partition_name);
    -- Rows that came before their partition wait in the default one.
    execute format(
        'with early as (delete from payonce.job_logs_default where created_at >= %L and created_at < %L returning *) '
        'insert into payonce.%I select * from early', day_start, day_end, partition_name);
    execute format(
        'alter table payonce.job_logs attach partition payonce.%I for values from (%L) to (%L)',
        partition_name, day_start, day_end);
    return true;
end
$$;

create function payonce.drop_job_logs_before(day date) returns integer
    language plpgsql security definer set search_path = pg_catalog, payonce, pg_temp
as $$
declare
    partition_name text;
    dropped integer := 0;
begin
    for partition_name in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'payonce.job_logs'::regclass and c.relname ~ '^job_logs_[0-9]{8}$'
          and to_date(right(c.relname, 8), 'YYYYMMDD') < day
        order by c.relname
    loop
        execute format('drop table payonce.%I', partition_name);
        dropped := dropped + 1;
    end loop;
    delete from payonce.job_logs_default where created_at < day::timestamp at time zone 'UTC';
    return dropped;
end
$$;

revoke all on function payonce.add_job_log_partition(date), payonce.drop_job_logs_before(date) from public;
grant execute on function payonce.add_job_log_partition(date), payonce.drop_job_logs_before(date) to payonce_service;
grant select, insert on payonce.job_logs to payonce_service;
