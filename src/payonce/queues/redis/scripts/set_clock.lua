-- Under test: the clocks as PostgreSQL has them, unless somebody wrote them meanwhile. ARGV: names and values.
if redis.call('EXISTS', 'payonce:test_clock') == 0 then redis.call('HSET', 'payonce:test_clock', unpack(ARGV)) end
return {'OK'}
