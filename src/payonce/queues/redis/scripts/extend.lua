-- Renews leases. ARGV: lease in microseconds, the limit's name, then id and token of each. Answers with the lost ids.
local lease_us, limit = tonumber(ARGV[1]), ARGV[2]
local deadline, lease_ms = (lease_now + lease_us) / 1000, whole(math.ceil(lease_us / 1000))
local lost = {'OK'}
for at = 3, #ARGV, 2 do
    local id = ARGV[at]
    if holds(redis.call('HGET', CLAIMS, id), ARGV[at + 1]) then
        redis.call('ZADD', LEASES, deadline, id)
        redis.call('PEXPIRE', LOCK .. id, lease_ms)
        if limit ~= '' then redis.call('ZADD', 'limit:' .. limit .. ':leases', deadline, MAIN .. ' ' .. id) end
    else
        lost[#lost + 1] = id
    end
end
return lost
