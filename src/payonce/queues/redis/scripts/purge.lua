-- Deletes messages that are unchanged since they were read. ARGV: state, retention of keys, then per message id, body,
-- expected metadata, idempotency key and log line. Returns the ids it deleted.
local state, retention_us = ARGV[1], tonumber(ARGV[2])
local gone, lines = {'OK'}, {}
local function remove(body, lane)
    if state == 'parked' then return redis.call('LREM', FAILED, -1, body) end
    if state == 'alone' then return redis.call('ZREM', ALONE, body) end
    if redis.call('ZREM', DELAYED, body) == 1 then return 1 end
    if redis.call('LREM', LANE .. lane, -1, body) == 1 then
        redis.call('LREM', MAIN, 1, PLACE)
        if redis.call('EXISTS', LANE .. lane) == 0 then redis.call('LREM', LANES, 1, lane) end
        return 1
    end
    return redis.call('LREM', MAIN, -1, body)
end
for at = 3, #ARGV, 5 do
    local id, body, known, key = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    local text = redis.call('HGET', IDS, id) or ''
    local meta = meta_of(text)
    if text == known and remove(body, meta and meta.lane or '') == 1 then
        redis.call('HDEL', IDS, id)
        if key ~= '' then end_keys({id}, {key}, retention_us) end
        if ARGV[at + 4] ~= '' then lines[#lines + 1] = ARGV[at + 4] end
        gone[#gone + 1] = id
    end
end
write_log(lines)
return gone
