-- Forgets ids whose messages are gone after a list was deleted or evicted, so that PostgreSQL's copies come back.
-- Messages that a worker may still run are not forgotten: their claim has the body, or their lease has not ended. ARGV:
-- limit of messages to search. Returns how many it forgot.
local lists, sorted = {MAIN, PROCESSING, FAILED}, {DELAYED, ALONE}
for _, lane in ipairs(redis.call('LRANGE', LANES, 0, -1)) do lists[#lists + 1] = LANE .. lane end
local total = laned and -redis.call('LLEN', MAIN) or 0
for _, key in ipairs(lists) do total = total + redis.call('LLEN', key) end
for _, key in ipairs(sorted) do total = total + redis.call('ZCARD', key) end
if redis.call('HLEN', IDS) <= total or redis.call('HLEN', IDS) > tonumber(ARGV[1]) then return {'OK', 0} end
local there, lost = {}, {}
for _, key in ipairs(lists) do
    for _, body in ipairs(redis.call('LRANGE', key, 0, -1)) do there[id_of(body) or hash_id(body)] = true end
end
for _, key in ipairs(sorted) do
    for _, body in ipairs(redis.call('ZRANGE', key, 0, -1)) do there[id_of(body) or hash_id(body)] = true end
end
for _, id in ipairs(redis.call('HKEYS', CLAIMS)) do there[id] = true end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '(' .. string.format('%.17g', lease_now / 1000), '+inf')) do
    there[id] = true
end
for _, id in ipairs(redis.call('HKEYS', IDS)) do
    if not there[id] then lost[#lost + 1] = id end
end
many('HDEL', IDS, lost)
return {'OK', #lost}
