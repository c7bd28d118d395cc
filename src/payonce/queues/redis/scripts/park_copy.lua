-- Restores parked messages that only PostgreSQL has. ARGV per message: body, time of parking, lane, reason. Returns
-- their number. One whose body is stored, but whose metadata is lost, gets its metadata back.
local missing, any, count = {}, false, 0
for at = 1, #ARGV, 4 do
    local id = id_of(ARGV[at])
    if redis.call('HEXISTS', IDS, id) == 0 then missing[id], any = at, true end
end
for from = 0, any and redis.call('LLEN', FAILED) - 1 or -1, CHUNK do
    for _, body in ipairs(redis.call('LRANGE', FAILED, from, from + CHUNK - 1)) do
        local id = id_of(body)
        if id and missing[id] then missing[id] = -math.abs(missing[id]) end
    end
end
for at = 1, #ARGV, 4 do
    local id = id_of(ARGV[at])
    if missing[id] and math.abs(missing[id]) == at then
        if missing[id] > 0 then
            redis.call('LPUSH', FAILED, ARGV[at])
            count = count + 1
        end
        redis.call('HSET', IDS, id, meta_text('keP', ARGV[at + 1], 0, nil, ARGV[at + 2], ARGV[at + 3]))
    end
end
return {'OK', count}
