-- Releases claims whose lease has ended. A crash of an isolated run parks the message; beside others it raises
-- suspicion.
-- ARGV per message: id, token, reason and log line. Returns the released ids.
local taken, lines = {'OK'}, {}
local now = whole(due_now)
pump()
for at = 1, #ARGV, 4 do
    local id, reason = ARGV[at], ARGV[at + 2]
    local text, deadline = redis.call('HGET', CLAIMS, id), redis.call('ZSCORE', LEASES, id)
    local record = holds(text, ARGV[at + 1]) and record_of(text)
    local meta = meta_of(redis.call('HGET', IDS, id) or unknown())
    if record and meta and deadline and tonumber(deadline) <= lease_now / 1000 then
        let_go({id}, {record.body})
        local crashes, state = record.crashes + 1, 'c'
        if record.alone then
            state = 'P'
            redis.call('LPUSH', FAILED, record.body)
        elseif crashes >= SUSPICIOUS then
            redis.call('ZADD', ALONE, due_now / 1000, record.body)
        else
            push(record.body, meta.lane)
        end
        redis.call('HSET', IDS, id, meta_text(string.sub(meta.flags, 1, 2) .. state, now, crashes, record.first,
            meta.lane, reason))
        lines[#lines + 1] = ARGV[at + 3]
        taken[#taken + 1] = id
    end
end
write_log(lines)
return taken
