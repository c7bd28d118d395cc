-- Lists claims whose lease has ended, the oldest first. ARGV: limit. Returns the current time, whether a claim or a
-- lease is missing, then id, record and metadata of each.
local ids = redis.call('ZRANGEBYSCORE', LEASES, '-inf', lease_now / 1000, 'LIMIT', 0, ARGV[1])
local reply = {'OK', whole(due_now), claims_are_whole() and 0 or 1}
local records, metas = read_many('HMGET', CLAIMS, ids), read_many('HMGET', IDS, ids)
for i = 1, #ids do
    reply[#reply + 1] = ids[i]
    reply[#reply + 1] = records[i] or ''
    reply[#reply + 1] = metas[i] or unknown()
end
return reply
