-- Settles, then claims, in one step.
-- ARGV: lease in microseconds, worker, token, claim limit, source (ready or alone), a new id for bodies without one,
-- retention of keys, the limit's name, number of successes; per success id, token, key, log line; per other ending id,
-- token, ending, new body, delay, reason, key, log line.
-- Returns: OK, current time, rest, one letter per settlement (S settled, A already, T stale), then body and metadata of
-- each claim.
local lease_us, worker, token, wanted, source = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local fresh, retention_us, limit, successes = ARGV[6], tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[9])
local now = whole(due_now)
local HEAD, SUCCESS_ARGS, OTHER_ARGS = 9, 4, 8
local SUCCESS_END = HEAD + successes * SUCCESS_ARGS
local others = (#ARGV - SUCCESS_END) / OTHER_ARGS
local answers, lines, seen = {}, {}, {}

-- The limit's allowance. A limit that is unknown, or does not list this queue, was lost: it is declared again before
-- anything is settled or claimed.
local bound = {}
if limit ~= '' and wanted > 0 then
    local fields = redis.call('HGETALL', 'limit:' .. limit)
    for i = 1, #fields, 2 do bound[fields[i]] = fields[i + 1] end
    if declared[2] == limit and not bound[MEMBER .. MAIN] then return {'UNDECLARED'} end
end

local function missed(id)
    return redis.call('HEXISTS', IDS, id) == 1 and 'T' or 'A'
end

local function settle_successes()
    local ids, gone, bodies, key_ids, keys = {}, {}, {}, {}, {}
    for i = 1, successes do ids[i] = ARGV[HEAD + (i - 1) * SUCCESS_ARGS + 1] end
    local records = read_many('HMGET', CLAIMS, ids)
    for i = 1, successes do
        local at, id, record = HEAD + (i - 1) * SUCCESS_ARGS, ids[i], records[i]
        if not seen[id] and holds(record, ARGV[at + 2]) then
            seen[id] = true
            gone[#gone + 1] = id
            bodies[#gone] = string.sub(record, string.find(record, '\n', 1, true) + 1)
            if ARGV[at + 3] ~= '' then
                key_ids[#key_ids + 1], keys[#keys + 1] = id, ARGV[at + 3]
            end
            if ARGV[at + 4] ~= '' then lines[#lines + 1] = ARGV[at + 4] end
            answers[i] = 'S'
        end
    end
    let_go(gone, bodies)
    many('HDEL', IDS, gone)
    end_keys(key_ids, keys, retention_us)
    for i = 1, successes do answers[i] = answers[i] or missed(ids[i]) end
end

-- An orderly end clears the crash suspicion; a release is no run. The time between a release and the next due time does
-- not age a message: a freeze may last longer than its policy retries.
local function settle_other(id, record, meta, ending, new_body, delay_us, reason, key)
    let_go({id}, {record.body})
    if ending == 'failed' then
        redis.call('HDEL', IDS, id)
        if key ~= '' then end_keys({id}, {key}, retention_us) end
        return
    end
    local kind, ready_us, first, crashes = string.sub(meta.flags, 1, 2), due_now + delay_us, record.first, 0
    local body = new_body ~= '' and new_body or record.body
    local state, to_alone = 'c', false
    if ending == 'parked' then
        state = 'P'
        redis.call('LPUSH', FAILED, body)
        if new_body ~= '' and string.sub(kind, 1, 1) ~= 'k' then
            -- PostgreSQL does not know the message: if its row in the job log is not written, the next sweep writes it.
            redis.call('LPUSH', UNLOGGED, id .. ' ' .. record.claimed .. ' ' .. reason)
        end
    elseif ending == 'released' then
        local tried = new_body == '+' or record.crashes > 0
        body, crashes = record.body, record.crashes
        first = tried and whole(tonumber(record.first) + due_now - record.claimed + delay_us) or nil
        to_alone = crashes >= SUSPICIOUS
    end
    redis.call('HSET', IDS, id, meta_text(kind .. state, whole(ready_us), crashes, first, meta.lane, reason))
    if to_alone then
        redis.call('ZADD', ALONE, ready_us / 1000, body)
    elseif state == 'c' then
        make_ready(body, ready_us, meta.lane)
    end
end

local function settle_others()
    pump()
    for i = 1, others do
        local at = SUCCESS_END + (i - 1) * OTHER_ARGS
        local id, ending = ARGV[at + 1], ARGV[at + 3]
        local text = redis.call('HGET', CLAIMS, id)
        local record = holds(text, ARGV[at + 2]) and record_of(text)
        local meta = meta_of(redis.call('HGET', IDS, id))
        if record and meta then
            settle_other(id, record, meta, ending, ARGV[at + 4], tonumber(ARGV[at + 5]), ARGV[at + 6], ARGV[at + 7])
            if ARGV[at + 8] ~= '' then lines[#lines + 1] = ARGV[at + 8] end
            answers[successes + i] = 'S'
        else
            answers[successes + i] = missed(id)
        end
    end
end

-- A message in progress without a lease counts as well: the lease was lost, and the run may continue.
local function held_in(key)
    local leases = key .. ':leases'
    local in_work = math.max(redis.call('LLEN', key .. ':processing'), redis.call('HLEN', key .. ':claims'))
    return redis.call('ZCOUNT', leases, '(' .. string.format('%.17g', lease_now / 1000), '+inf')
        + math.max(0, in_work - redis.call('ZCARD', leases))
end

-- Counted over all queues under the limit. A queue that has moved to another limit is removed here.
local function held_under_limit()
    local held = 0
    for field in pairs(bound) do
        local key = string.sub(field, 1, #MEMBER) == MEMBER and string.sub(field, #MEMBER + 1)
        if key and (redis.call('HGET', key .. ':policy', 'limit') or limit) == limit then held = held + held_in(key) end
    end
    return held
end

-- The number of claims the limit allows, and when to ask again if none. Counts live leases, not a counter.
local function allowance()
    local allowed, rest_us = wanted, nil
    if bound.concurrency and bound.concurrency ~= '' then
        local closed = (tonumber(bound.closed_until) or 0) > lease_now
        allowed = closed and 0 or math.min(allowed, bound.concurrency - held_under_limit())
        -- A slot freed by another queue is not announced.
        if allowed <= 0 then rest_us = 50000 end
    end
    if bound.rate and bound.rate ~= '' then
        local rate, burst = tonumber(bound.rate), tonumber(bound.burst)
        local debt_s = math.max((tonumber(bound.arrival) or 0) - due_now, 0) / 1000000
        -- Tolerates rounding: 0.1 s of debt at 10/s is one dispatch, not 1.0000000001.
        local room = burst - debt_s * rate + 0.000001
        if room < 1 then rest_us = math.max(rest_us or 0, math.ceil((debt_s - (burst - 1) / rate) * 1000000)) end
        allowed = math.min(allowed, math.floor(room))
    end
    return math.max(allowed, 0), rest_us
end

local function spend(count)
    if count == 0 or not bound.rate or bound.rate == '' then return end
    local arrival = math.max(tonumber(bound.arrival) or 0, due_now) + count / bound.rate * 1000000
    redis.call('HSET', 'limit:' .. limit, 'arrival', string.format('%.3f', arrival))
end

-- Lanes take turns with equal shares. A body in the main list of a queue with lanes was pushed manually, or before it
-- had them: it shares the lane of messages without one.
local function take_from_lanes(places, bodies)
    local bytes = 0
    while places > 0 do
        local lanes = redis.call('LLEN', LANES)
        if lanes == 0 then return end
        local share = math.min(math.max(1, math.floor(places / lanes)), AT_ONCE)
        for _ = 1, math.min(lanes, places) do
            local lane = redis.call('LPOP', LANES)
            local taken = redis.call('RPOP', LANE .. lane, share) or {}
            for i = 1, #taken do
                bodies[#bodies + 1] = taken[i]
                bytes = bytes + #taken[i]
            end
            places = places - #taken
            if redis.call('LLEN', LANE .. lane) > 0 then redis.call('RPUSH', LANES, lane) end
            if bytes > BYTES_MAX then
                for _ = 1, places do redis.call('RPUSH', MAIN, PLACE) end
                return
            end
        end
    end
end

-- What exceeds one response stays the oldest in its list.
local function leave_rest(bodies)
    local bytes, last = 0, #bodies
    for i = 1, #bodies do
        bytes = bytes + #bodies[i]
        if bytes > BYTES_MAX then
            last = i
            break
        end
    end
    for i = #bodies, last + 1, -1 do
        redis.call('RPUSH', MAIN, bodies[i])
        bodies[i] = nil
    end
end

local function take(count)
    if source == 'alone' then
        local due = redis.call('ZRANGEBYSCORE', ALONE, '-inf', due_now / 1000, 'LIMIT', 0, count)
        if #due > 0 then redis.call('ZREM', ALONE, unpack(due)) end
        return due
    end
    pump()
    local found, bodies, places = redis.call('RPOP', MAIN, count) or {}, {}, 0
    for i = 1, #found do
        if found[i] == PLACE then
            places = places + 1
        elseif laned then
            places = places + 1
            if redis.call('LPUSH', LANE, found[i]) == 1 then redis.call('RPUSH', LANES, '') end
        else
            bodies[#bodies + 1] = found[i]
        end
    end
    if laned then take_from_lanes(places, bodies) else leave_rest(bodies) end
    return bodies
end

local named = 0
local function new_id()
    named = named + 1
    return string.sub(fresh, 1, 32) .. string.format('%04x', named)
end

-- A manually pushed body gets its id once, here, prepended to its bytes; it is not re-encoded.
local function named_body(body)
    local fine, value = pcall(cjson.decode, body)
    if not fine or type(value) ~= 'table' or not string.find(body, '^%s*{') then return nil end
    if type(value.payload) == 'table' and value.payload[1] == nil then
        local own = type(value.id) == 'string' and string.find(value.id, ID) and string.lower(value.id)
        local id = own or new_id()
        return id, '{"id":"' .. id .. '",' .. string.sub(body, string.find(body, '{', 1, true) + 1), own and 'dec' or 'den'
    end
    local id, action = new_id(), type(value.action) == 'string' and value.action or ''
    return id, '{"id":"' .. id .. '","created_at":"' .. iso(due_now) .. '","action":' .. cjson.encode(action)
        .. ',"attempts":0,"payload":' .. body .. '}', 'dpn'
end

-- The next sweep turns the entry in UNLOGGED into a row of PostgreSQL's job log.
local function park_unreadable(body)
    local id, reason = hash_id(body), 'this message cannot be read: it is no JSON object'
    redis.call('LPUSH', FAILED, body)
    redis.call('HSET', IDS, id, meta_text('deP', now, 0, nil, '', reason))
    redis.call('LPUSH', UNLOGGED, id .. ' ' .. now .. ' ' .. reason)
    lines[#lines + 1] = '"queue":' .. cjson.encode(MAIN) .. ',"action":"","status":"parked","message_id":"' .. id
        .. '","attempts":0,"info":"' .. reason .. '"}'
end

local function readable(bodies)
    local ids, kept, flags = {}, {}, {}
    for i = 1, #bodies do
        local body, given = bodies[i], nil
        local id = id_of(body)
        if not id then
            id, body, given = named_body(body)
        elseif string.find(id, '%u') then
            id = string.lower(id)
            body = '{"id":"' .. id .. '"' .. string.sub(body, 45)
        end
        if id then
            ids[#ids + 1] = id
            kept[#ids], flags[#ids] = body, given
        else
            park_unreadable(bodies[i])
        end
    end
    return ids, kept, flags
end

local function claim(count, reply)
    local ids, bodies, given = readable(take(count))
    if #ids == 0 then return end
    local metas, held = read_many('HMGET', IDS, ids), read_many('HMGET', CLAIMS, ids)
    local processing, claims, leases = {}, {}, {}
    local deadline, lock_until, claimed = (lease_now + lease_us) / 1000, expires_at(lease_us), {}
    for i = 1, #ids do
        local id, body, meta, info, crashes, first = ids[i], bodies[i], metas[i], '', 0, now
        -- A second copy of a message in progress was pushed manually; one is enough.
        if not held[i] and not claimed[id] then
            claimed[id] = true
            if not meta then
                meta = meta_text(given[i] or 'dec', now, 0, nil, '')
                redis.call('HSET', IDS, id, meta)
            end
            if string.sub(meta, 1, 3) ~= 'dpn' then
                local known = meta_of(meta) or {flags = 'dec', crashes = 0}
                crashes, first = known.crashes, known.first or now
                info = known.flags .. ' ' .. crashes .. ' ' .. first
            end
            processing[#processing + 1] = body
            claims[#claims + 1] = id
            claims[#claims + 1] = record_text(token, now, first, crashes, 0, worker, body)
            leases[#leases + 1] = deadline
            leases[#leases + 1] = id
            redis.call('SET', LOCK .. id, token, 'PXAT', lock_until)
            reply[#reply + 1] = body
            reply[#reply + 1] = info
        end
    end
    many('LPUSH', PROCESSING, processing)
    many('HSET', CLAIMS, claims)
    many('ZADD', LEASES, leases)
    if limit ~= '' then spend(#processing) end
end

if successes > 0 then settle_successes() end
if others > 0 then settle_others() end
local reply = {'OK', now, '', ''}
if redis.call('EXISTS', PAUSED) == 1 then
    reply[3] = 'paused'
    if wanted > 0 then pump() end
elseif wanted > 0 then
    local allowed, rest_us = wanted, nil
    if limit ~= '' then allowed, rest_us = allowance() end
    if rest_us then reply[3] = whole(rest_us) end
    if allowed > 0 then claim(allowed, reply) elseif source == 'ready' then pump() end
end
write_log(lines)
reply[4] = table.concat(answers)
return reply
