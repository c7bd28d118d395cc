-- A run's fence is sent together with the statement behind it. It has to raise by itself, so that the server skips what
-- stands behind it when the run no longer owns its message.

create function payonce.refuse_stale(message_id uuid, queue text) returns uuid
language plpgsql as $$
begin
    raise exception 'message % of % is no longer this run''s to settle', message_id, queue using errcode = 'PO001';
end
$$;

revoke all on function payonce.refuse_stale(uuid, text) from public;
grant execute on function payonce.refuse_stale(uuid, text) to payonce_service;
