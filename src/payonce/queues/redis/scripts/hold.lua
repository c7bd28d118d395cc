-- Checks a claim and renews its lease; from now on PostgreSQL may have a row for the message.
-- ARGV: lease in microseconds, id, token. Returns 1 if the claim is live, else 0.
local id = ARGV[2]
local deadline = redis.call('ZSCORE', LEASES, id)
if not holds(redis.call('HGET', CLAIMS, id), ARGV[3]) or not deadline or tonumber(deadline) <= lease_now / 1000 then
    return {'OK', 0}
end
redis.call('ZADD', LEASES, (lease_now + ARGV[1]) / 1000, id)
redis.call('PEXPIREAT', LOCK .. id, expires_at(tonumber(ARGV[1])))
local meta = meta_of(redis.call('HGET', IDS, id))
if meta and string.sub(meta.flags, 1, 1) == 'd' then
    redis.call('HSET', IDS, id, meta_text('a' .. string.sub(meta.flags, 2), meta.ready, meta.crashes, meta.first,
        meta.lane, meta.error))
end
return {'OK', 1}
