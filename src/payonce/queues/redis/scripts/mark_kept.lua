-- Marks messages as kept by PostgreSQL. ARGV per message: id, its expected metadata. Returns the new metadata of each,
-- empty for one that has changed.
local reply = {'OK'}
for at = 1, #ARGV, 2 do
    local id, text = ARGV[at], redis.call('HGET', IDS, ARGV[at]) or ''
    local known = ''
    if text == ARGV[at + 1] then
        known = text == '' and meta_text('kec', whole(due_now), 0, nil, '') or 'k' .. string.sub(text, 2)
        redis.call('HSET', IDS, id, known)
    end
    reply[#reply + 1] = known
end
return reply
