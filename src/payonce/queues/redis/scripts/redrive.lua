-- Makes parked messages start over. ARGV per message: id, the stored body, new body. Returns the ids that do.
local moved, now = {'OK'}, whole(due_now)
pump()
for at = 1, #ARGV, 3 do
    local id = ARGV[at]
    if redis.call('LREM', FAILED, -1, ARGV[at + 1]) == 1 then
        local meta = meta_of(redis.call('HGET', IDS, id)) or {flags = 'deP', lane = ''}
        redis.call('HSET', IDS, id, meta_text(string.sub(meta.flags, 1, 2) .. 'c', now, 0, nil, meta.lane))
        push(ARGV[at + 2], meta.lane)
        moved[#moved + 1] = id
    end
end
return moved
