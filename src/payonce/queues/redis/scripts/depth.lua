-- Answers: ready, delayed, alone, leased, parked, microseconds since the oldest became ready, paused.
local waiting, at = redis.call('LLEN', MAIN), due_now / 1000
local due, oldest = redis.call('ZCOUNT', DELAYED, '-inf', at), 0
local function look(body)
    local id = body and id_of(body)
    local meta = id and meta_of(redis.call('HGET', IDS, id))
    if meta then oldest = math.max(oldest, due_now - meta.ready) end
end
look(redis.call('LINDEX', MAIN, -1))
for _, lane in ipairs(redis.call('LRANGE', LANES, 0, 999)) do look(redis.call('LINDEX', LANE .. lane, -1)) end
local first = redis.call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2]
if first then oldest = math.max(oldest, due_now - first * 1000) end
return {'OK', waiting + due, redis.call('ZCARD', DELAYED) - due, redis.call('ZCARD', ALONE),
    redis.call('LLEN', PROCESSING), redis.call('LLEN', FAILED), whole(oldest), redis.call('EXISTS', PAUSED)}
