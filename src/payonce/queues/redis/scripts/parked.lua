-- Lists parked messages. ARGV: offset, limit. Returns how many it read, then id and mark of each that PostgreSQL keeps,
-- or may keep.
local bodies = redis.call('LRANGE', FAILED, ARGV[1], ARGV[1] + ARGV[2] - 1)
local ids, reply = {}, {'OK', #bodies}
for _, body in ipairs(bodies) do ids[#ids + 1] = id_of(body) end
for i, text in ipairs(read_many('HMGET', IDS, ids)) do
    local mark = text and string.sub(text, 1, 1)
    if mark == 'k' or mark == 'a' then
        reply[#reply + 1] = ids[i]
        reply[#reply + 1] = mark
    end
end
return reply
