-- Takes in messages that PostgreSQL keeps. ARGV of each: body, in how many microseconds it is
-- ready by whatever clock, when it was first tried or -, lane.
-- One that is here already stays as it is; one that is parked here was redriven there, and starts over.
local redriven, any = {}, false
pump()
for at = 1, #ARGV, 4 do
    local body, ready, first, lane = ARGV[at], whole(due_now + ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
    local id = id_of(body)
    local form = string.match(body, '^,"created_at":"[^"]*","action":', 45) and 'p' or 'e'
    local meta = meta_of(redis.call('HGET', IDS, id))
    if meta and string.sub(meta.flags, 3) ~= 'P' then
        redis.call('HSET', IDS, id, meta_text('k' .. string.sub(meta.flags, 2), meta.ready, meta.crashes, meta.first,
            meta.lane, meta.error))
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
