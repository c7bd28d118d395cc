-- Looks messages up. ARGV: ids. Returns one letter each: A absent, L live, P parked.
local reply = {}
for i, text in ipairs(read_many('HMGET', IDS, ARGV)) do
    local meta = meta_of(text)
    reply[i] = not meta and 'A' or string.sub(meta.flags, 3) == 'P' and 'P' or 'L'
end
return {'OK', table.concat(reply)}
