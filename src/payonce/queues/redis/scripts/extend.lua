-- Renews leases. ARGV: lease in microseconds, then id and token of each. Returns the ids of lost claims.
local lease_us = tonumber(ARGV[1])
local deadline, lock_until = (lease_now + lease_us) / 1000, expires_at(lease_us)
local lost = {'OK'}
for at = 2, #ARGV, 2 do
    local id = ARGV[at]
    if holds(redis.call('HGET', CLAIMS, id), ARGV[at + 1]) then
        redis.call('ZADD', LEASES, deadline, id)
        redis.call('PEXPIREAT', LOCK .. id, lock_until)
    else
        lost[#lost + 1] = id
    end
end
return lost
