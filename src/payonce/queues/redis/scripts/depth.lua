-- Manually pushed messages have no time: the next one counts as ready since this script first saw it.
-- Returns: ready, delayed, isolated, leased, parked, microseconds since the oldest became ready, paused.
local SEEN, SEEN_US = MAIN .. ':seen', 86400 * 1000000
local waiting, at = redis.call('LLEN', MAIN), due_now / 1000
local due, oldest = redis.call('ZCOUNT', DELAYED, '-inf', at), 0
local function look(body)
    local id = body and id_of(body)
    local meta = id and meta_of(redis.call('HGET', IDS, id))
    if meta then oldest = math.max(oldest, due_now - meta.ready) end
end
local next_one = redis.call('LINDEX', MAIN, -1)
look(next_one)
if next_one and next_one ~= PLACE and redis.call('HEXISTS', IDS, id_of(next_one) or hash_id(next_one)) == 0 then
    local hash = redis.sha1hex(next_one)
    local seen = string.match(redis.call('GET', SEEN) or '', '^' .. hash .. ' (%d+)$')
    if seen then oldest = math.max(oldest, due_now - seen)
    else redis.call('SET', SEEN, hash .. ' ' .. whole(due_now), 'PXAT', expires_at(SEEN_US)) end
end
for _, lane in ipairs(redis.call('LRANGE', LANES, 0, 999)) do look(redis.call('LINDEX', LANE .. lane, -1)) end
local first = redis.call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2]
if first then oldest = math.max(oldest, due_now - first * 1000) end
return {'OK', waiting + due, redis.call('ZCARD', DELAYED) - due, redis.call('ZCARD', ALONE),
    redis.call('LLEN', PROCESSING), redis.call('LLEN', FAILED), whole(oldest), redis.call('EXISTS', PAUSED)}
