-- Releases claims that a worker holds but does not run, or those under one token. ARGV: worker, token (empty: any), ids
-- that run. Returns their number.
local worker, token, running = ARGV[1], ARGV[2], {}
for i = 3, #ARGV do running[ARGV[i]] = true end
local back, all = {}, redis.call('HGETALL', CLAIMS)
for i = 1, #all, 2 do
    local record = not running[all[i]] and record_of(all[i + 1])
    local mine = record and record.worker == worker and (token == '' or record.token == token)
    local meta = mine and meta_of(redis.call('HGET', IDS, all[i]))
    if meta then back[#back + 1] = {id = all[i], record = record, meta = meta} end
end
-- They were first in the queue; the oldest of them is first again.
table.sort(back, function(one, other) return one.meta.ready > other.meta.ready end)
for _, each in ipairs(back) do
    let_go({each.id}, {each.record.body})
    local flags = string.sub(each.meta.flags, 1, 2) .. 'c'
    redis.call('HSET', IDS, each.id, meta_text(flags, each.meta.ready, each.record.crashes, each.meta.first,
        each.meta.lane, each.meta.error))
    if each.record.crashes >= SUSPICIOUS then
        redis.call('ZADD', ALONE, due_now / 1000, each.record.body)
    elseif laned then
        push(each.record.body, each.meta.lane)
    else
        redis.call('RPUSH', MAIN, each.record.body)
    end
end
return {'OK', #back}
