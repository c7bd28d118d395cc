-- Renews leases. ARGV: lease in microseconds, the limit's name, then id and token of each. Answers with the lost ids.
local lease_us, limit = tonumber(ARGV[1]), ARGV[2]
local deadline, lock_until, noted = (lease_now + lease_us) / 1000, expires_at(lease_us), others_leases(limit)
local lost = {'OK'}
for at = 3, #ARGV, 2 do
    local id = ARGV[at]
    if holds(redis.call('HGET', CLAIMS, id), ARGV[at + 1]) then
        redis.call('ZADD', LEASES, deadline, id)
        redis.call('PEXPIREAT', LOCK .. id, lock_until)
        if noted then redis.call('ZADD', noted, deadline, MAIN .. ' ' .. id) end
    else
        lost[#lost + 1] = id
    end
end
return lost
