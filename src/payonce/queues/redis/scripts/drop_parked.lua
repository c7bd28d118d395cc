-- Deletes parked copies of settled messages. ARGV: ids. Returns their number. A message redriven meanwhile stays.
local over, copies = {}, {}
for i, text in ipairs(read_many('HMGET', IDS, ARGV)) do
    local meta = meta_of(text)
    if not meta or string.sub(meta.flags, 3) == 'P' then over[ARGV[i]] = true end
end
for from = 0, redis.call('LLEN', FAILED) - 1, CHUNK do
    for _, body in ipairs(redis.call('LRANGE', FAILED, from, from + CHUNK - 1)) do
        local id = id_of(body)
        if id and over[id] then copies[#copies + 1] = body end
    end
end
for _, body in ipairs(copies) do
    redis.call('LREM', FAILED, -1, body)
    redis.call('HDEL', IDS, id_of(body))
end
return {'OK', #copies}
