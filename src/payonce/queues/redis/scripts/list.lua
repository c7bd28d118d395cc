-- Lists a page of messages in one state, in the order they fall due. ARGV: state, offset, limit. Returns fewer when
-- they are large: whether there are more, how many it read, then per message body, id, metadata, its claim without the
-- body, its deadline.
local state, skip, left = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local sources, bodies, more = {}, {}, 0
if state == 'ready' then
    sources[1] = {MAIN}
    for _, lane in ipairs(redis.call('LRANGE', LANES, 0, -1)) do sources[#sources + 1] = {LANE .. lane} end
    sources[#sources + 1] = {DELAYED, true}
elseif state == 'alone' then
    sources[1] = {ALONE, true}
else
    sources[1] = {state == 'parked' and FAILED or PROCESSING}
end
local looked, bytes = 0, 0
for _, source in ipairs(sources) do
    local key, sorted = source[1], source[2]
    local size = redis.call(sorted and 'ZCARD' or 'LLEN', key)
    while left > 0 and bytes < BYTES_MAX and skip < size do
        local take = math.min(left, size - skip, AT_ONCE)
        local page
        if sorted then
            page = redis.call('ZRANGE', key, skip, skip + take - 1)
        else
            page = redis.call('LRANGE', key, -(skip + take), -(skip + 1))
        end
        for i = 1, take do
            local body = page[sorted and i or take + 1 - i]
            if sorted or body ~= PLACE then
                bodies[#bodies + 1] = body
                bytes = bytes + #body
            end
        end
        looked, left, skip = looked + take, left - take, skip + take
    end
    if skip < size then more = 1 end
    skip = math.max(0, skip - size)
    if more == 1 then break end
end
local reply = {'OK', more, looked}
for _, body in ipairs(bodies) do
    local id = id_of(body) or hash_id(body)
    local record = state == 'leased' and redis.call('HGET', CLAIMS, id)
    reply[#reply + 1] = body
    reply[#reply + 1] = id
    reply[#reply + 1] = redis.call('HGET', IDS, id) or ''
    reply[#reply + 1] = record and string.match(record, '^[^\n]*') or ''
    reply[#reply + 1] = state == 'leased' and redis.call('ZSCORE', LEASES, id) or ''
end
return reply
