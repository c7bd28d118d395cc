-- Stores idempotency keys of another store; existing ones stay. ARGV per key: key, its message's id, remaining
-- microseconds, empty while its message lives.
for at = 1, #ARGV, 3 do
    local name, id, left = KEY .. ARGV[at], ARGV[at + 1], ARGV[at + 2]
    local known, expiry = string.match(redis.call('GET', name) or '', '^(%S+) (%d*)$')
    if not known or (expiry ~= '' and tonumber(expiry) <= due_now) then
        if left == '' then
            redis.call('SET', name, id .. ' ')
        else
            redis.call('SET', name, id .. ' ' .. whole(due_now + left), 'PXAT', expires_at(tonumber(left)))
        end
    end
end
return {'OK'}
