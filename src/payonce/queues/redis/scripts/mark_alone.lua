-- Marks a claimed message as running isolated. ARGV: id, token. Returns 1, or 0 if the claim is lost.
local text = redis.call('HGET', CLAIMS, ARGV[1])
local record = holds(text, ARGV[2]) and record_of(text)
if not record then return {'OK', 0} end
redis.call('HSET', CLAIMS, ARGV[1], record_text(record.token, record.claimed, record.first, record.crashes, 1,
    record.worker, record.body))
return {'OK', 1}
