-- Stores messages that PostgreSQL keeps. ARGV per message: body, microseconds until it is due by any clock, time of its
-- first attempt or -, lane.
-- A message that exists stays unchanged, with two exceptions: if it waits here but is due in PostgreSQL, it was woken
-- there and becomes due; if it is parked here, it was redriven there and starts over.
local redriven, any = {}, false

-- Waiting messages are scored by the time in their metadata.
local function hasten(id, meta)
    local at = string.format('%.17g', meta.ready / 1000)
    for _, key in ipairs({DELAYED, ALONE}) do
        for _, body in ipairs(redis.call('ZRANGEBYSCORE', key, at, at)) do
            if id_of(body) == id then
                redis.call('ZREM', key, body)
                if key == ALONE then redis.call('ZADD', ALONE, due_now / 1000, body) else push(body, meta.lane) end
                return whole(due_now)
            end
        end
    end
    return meta.ready
end

pump()
for at = 1, #ARGV, 4 do
    local body, ready, first, lane = ARGV[at], whole(due_now + ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
    local id = id_of(body)
    local form = string.match(body, '^,"created_at":"[^"]*","action":', 45) and 'p' or 'e'
    local meta = meta_of(redis.call('HGET', IDS, id))
    if meta and string.sub(meta.flags, 3) ~= 'P' then
        local early = tonumber(meta.ready) > due_now and tonumber(ready) <= due_now
        redis.call('HSET', IDS, id, meta_text('k' .. string.sub(meta.flags, 2), early and hasten(id, meta) or meta.ready,
            meta.crashes, meta.first, meta.lane, meta.error))
    else
        redis.call('HSET', IDS, id, meta_text('k' .. form .. 'c', ready, 0, first ~= '-' and first or nil, lane))
        make_ready(body, tonumber(ready), lane)
        if meta then redriven[id], any = true, true end
    end
end
local copies = {}
for from = 0, any and redis.call('LLEN', FAILED) - 1 or -1, CHUNK do
    for _, body in ipairs(redis.call('LRANGE', FAILED, from, from + CHUNK - 1)) do
        local id = id_of(body)
        if id and redriven[id] then copies[#copies + 1] = body end
    end
end
for i = 1, #copies do redis.call('LREM', FAILED, -1, copies[i]) end
return {'OK'}
