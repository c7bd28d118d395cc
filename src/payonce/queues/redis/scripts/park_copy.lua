-- Writes parked messages back that only PostgreSQL still has. ARGV of each: body, when it was parked, lane, reason.
local count = 0
for at = 1, #ARGV, 4 do
    local id = id_of(ARGV[at])
    if redis.call('HEXISTS', IDS, id) == 0 then
        redis.call('LPUSH', FAILED, ARGV[at])
        redis.call('HSET', IDS, id, meta_text('keP', ARGV[at + 1], 0, nil, ARGV[at + 2], ARGV[at + 3]))
        count = count + 1
    end
end
return {'OK', count}
