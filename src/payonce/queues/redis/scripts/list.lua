-- One page of the messages of a state, in the order they fall due. ARGV: state, how many to skip, how many to show.
-- Answers whether there is more, then of each body, id, what is known of it, its claim without the body, its deadline.
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
for _, source in ipairs(sources) do
    local key, sorted = source[1], source[2]
    local size = redis.call(sorted and 'ZCARD' or 'LLEN', key)
    local take = math.max(0, math.min(left, size - skip))
    if size - skip > left then more = 1 end
    if take > 0 and sorted then
        for _, body in ipairs(redis.call('ZRANGE', key, skip, skip + take - 1)) do bodies[#bodies + 1] = body end
    elseif take > 0 then
        local page = redis.call('LRANGE', key, -(skip + take), -(skip + 1))
        for i = #page, 1, -1 do
            if page[i] ~= PLACE then bodies[#bodies + 1] = page[i] end
        end
    end
    left, skip = left - take, math.max(0, skip - size)
end
local reply = {'OK', more}
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
