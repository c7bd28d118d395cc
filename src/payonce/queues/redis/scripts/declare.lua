-- Makes a queue known: what PostgreSQL says of it. ARGV: lanes, paused reason (empty: leave it), the queue's name, the
-- limit's name, the key of a queue of that name, concurrency, rate, burst. The rate's arrival time stays.
redis.call('HSET', KEYS[1] .. ':policy', 'lanes', ARGV[1], 'own', ARGV[3], 'limit', ARGV[4])
if ARGV[2] ~= '' then redis.call('SET', KEYS[1] .. ':paused', ARGV[2]) end
if ARGV[4] ~= '' then
    redis.call('HSET', 'limit:' .. ARGV[4], 'queue', ARGV[5], 'concurrency', ARGV[6], 'rate', ARGV[7], 'burst', ARGV[8])
end
return {'OK'}
