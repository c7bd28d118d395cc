-- Makes a queue known: what PostgreSQL says of it. ARGV: lanes, paused reason (empty: leave it), the limit's name,
-- concurrency, rate, burst. The rate's arrival time stays.
redis.call('HSET', KEYS[1] .. ':policy', 'lanes', ARGV[1], 'limit', ARGV[3])
if ARGV[2] ~= '' then redis.call('SET', KEYS[1] .. ':paused', ARGV[2]) end
if ARGV[3] ~= '' then
    redis.call('HSET', 'limit:' .. ARGV[3], 'concurrency', ARGV[4], 'rate', ARGV[5], 'burst', ARGV[6])
end
return {'OK'}
