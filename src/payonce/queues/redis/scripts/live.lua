-- Checks claims. ARGV: id and token of each. Returns one letter each: H held by that claim, T taken by another, A
-- absent.
local reply = {}
for at = 1, #ARGV, 2 do
    local letter = holds(redis.call('HGET', CLAIMS, ARGV[at]), ARGV[at + 1]) and 'H'
    reply[#reply + 1] = letter or (redis.call('HEXISTS', IDS, ARGV[at]) == 1 and 'T' or 'A')
end
return {'OK', table.concat(reply)}
