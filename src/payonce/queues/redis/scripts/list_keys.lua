-- Lists a page of a queue's idempotency keys. ARGV: cursor. Returns the next cursor, then per key the key, its
-- message's id, and the remaining microseconds, empty while its message lives.
local escaped = string.gsub(KEY, '[%*%?%[%]%^\\]', '\\%0')
local found = redis.call('SCAN', ARGV[1], 'MATCH', escaped .. '*', 'COUNT', 1000)
local reply = {'OK', found[1]}
for _, name in ipairs(found[2]) do
    local id, expiry = string.match(redis.call('GET', name) or '', '^(%x+%-%x+%-%x+%-%x+%-%x+) (%d*)$')
    if id and (expiry == '' or tonumber(expiry) > due_now) then
        reply[#reply + 1] = string.sub(name, #KEY + 1)
        reply[#reply + 1] = id
        reply[#reply + 1] = expiry == '' and '' or whole(expiry - due_now)
    end
end
return reply
