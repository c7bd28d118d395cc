-- Declares a queue as PostgreSQL has it. ARGV: lanes, paused reason (empty: unchanged), lease in microseconds, the
-- limit's name, concurrency, rate, burst, the longest lease under the limit, 1 if nothing can be in progress under it.
-- The rate's arrival time stays.
local limit = 'limit:' .. ARGV[4]
redis.call('HSET', KEYS[1] .. ':policy', 'lanes', ARGV[1], 'limit', ARGV[4], 'lease', ARGV[3])
if ARGV[2] ~= '' then redis.call('SET', KEYS[1] .. ':paused', ARGV[2]) end
if ARGV[4] ~= '' then
    -- The limit was lost, and most likely its leases, too. Their runs continue until their workers notice, which is
    -- before the leases would have ended: nothing is claimed under the limit until then.
    if ARGV[9] ~= '1' and redis.call('EXISTS', limit) == 0 then
        redis.call('HSET', limit, 'closed_until', string.format('%.0f', lease_now + ARGV[8]))
    end
    redis.call('HSET', limit, 'concurrency', ARGV[5], 'rate', ARGV[6], 'burst', ARGV[7], 'member:' .. KEYS[1], '1')
end
return {'OK'}
