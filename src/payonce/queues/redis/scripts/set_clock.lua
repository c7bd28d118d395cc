-- Under test: sets the clocks as PostgreSQL has them, unless they were set meanwhile. ARGV: names and values.
if redis.call('EXISTS', 'payonce:test_clock') == 0 then redis.call('HSET', 'payonce:test_clock', unpack(ARGV)) end
return {'OK'}
