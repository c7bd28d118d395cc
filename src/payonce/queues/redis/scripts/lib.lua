-- Shared by the scripts of a queue. KEYS[1] is its main list; the other keys are named after it.
-- Times are whole microseconds, stored as text: Lua numbers lose their last digits as text unless formatted.
-- Scores are milliseconds, with microseconds as decimals.
local MAIN = KEYS[1]
local PROCESSING, DELAYED, FAILED, ALONE = MAIN .. ':processing', MAIN .. ':delayed', MAIN .. ':failed', MAIN .. ':alone'
local LEASES, CLAIMS, IDS, POLICY = MAIN .. ':leases', MAIN .. ':claims', MAIN .. ':ids', MAIN .. ':policy'
local UNLOGGED = MAIN .. ':unlogged'
local PAUSED, LANES, LANE = MAIN .. ':paused', MAIN .. ':lanes', MAIN .. ':lane:'
-- No queue name contains a slash: keys of pay:sub are not taken for keys of pay.
local LOCK, KEY, LOG = 'lock:' .. MAIN .. ':', 'key:' .. MAIN .. '/', 'q:log:jobs'
local LOG_MAX, CHUNK, PUMP_MAX = 10000, 2000, 5000
local PLACE = '#' -- in the main list of a queue with lanes: one for each message that waits in a lane
local SUSPICIOUS = 2
local MEMBER = 'member:' -- in the hash of a limit: the fields that name the queues under it
local AT_ONCE, BYTES_MAX = 8, 4194304 -- an answer ends with the body that makes it larger than a line carries at once

-- Declarations of earlier versions lack the lease.
local declared = redis.call('HMGET', POLICY, 'lanes', 'limit', 'lease')
if not declared[1] or not declared[3] then return {'UNDECLARED'} end
local laned = declared[1] == '1'

local function whole(number) return string.format('%.0f', number) end

-- An absolute expiry: for its log the server would have to convert a relative one.
local function expires_at(after_us) return whole(math.ceil((time[1] * 1000000 + time[2] + after_us) / 1000)) end

-- Lua limits the number of arguments.
local function many(command, key, values)
    for first = 1, #values, CHUNK do
        redis.call(command, key, unpack(values, first, math.min(first + CHUNK - 1, #values)))
    end
end

local function read_many(command, key, fields)
    if #fields <= CHUNK then return #fields == 0 and {} or redis.call(command, key, unpack(fields)) end
    local found = {}
    for first = 1, #fields, CHUNK do
        local part = redis.call(command, key, unpack(fields, first, math.min(first + CHUNK - 1, #fields)))
        for i = 1, #part do found[first + i - 1] = part[i] end
    end
    return found
end

local function iso(at_us)
    local seconds = math.floor(at_us / 1000000)
    local days = math.floor(seconds / 86400)
    local rest, shifted = seconds - days * 86400, days + 719468
    local era = math.floor(shifted / 146097)
    local day_of_era = shifted - era * 146097
    local year = math.floor((day_of_era - math.floor(day_of_era / 1460) + math.floor(day_of_era / 36524)
        - math.floor(day_of_era / 146096)) / 365)
    local day_of_year = day_of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
    local month = math.floor((5 * day_of_year + 2) / 153)
    local day = day_of_year - math.floor((153 * month + 2) / 5) + 1
    month = month < 10 and month + 3 or month - 9
    year = year + era * 400 + (month <= 2 and 1 or 0)
    return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, month, day, math.floor(rest / 3600),
        math.floor(rest % 3600 / 60), rest % 60, at_us - seconds * 1000000)
end

-- Bodies written by payonce begin with the id, which is found by position.
local ID = '^' .. string.rep('%x', 8) .. string.rep('%-%x%x%x%x', 3) .. '%-' .. string.rep('%x', 12) .. '$'
local function id_of(body)
    if string.sub(body, 1, 7) == '{"id":"' and string.sub(body, 44, 44) == '"' then
        local id = string.sub(body, 8, 43)
        if string.find(id, ID) then return id end
    end
end

-- A body without an id that is no message is identified by a hash of its bytes.
local function hash_id(body)
    local hash = redis.sha1hex(body)
    return string.sub(hash, 1, 8) .. '-' .. string.sub(hash, 9, 12) .. '-' .. string.sub(hash, 13, 16) .. '-'
        .. string.sub(hash, 17, 20) .. '-' .. string.sub(hash, 21, 32)
end

-- A message's metadata: kind (k has a row in PostgreSQL, a may have one, d has none), form (p plain, e with foreign
-- fields), state (n never claimed, c claimed before, P parked), then numbers, its lane and its last error.
local function meta_text(flags, ready, crashes, first, lane, error)
    return flags .. ' ' .. ready .. ' ' .. crashes .. ' ' .. (first or '-') .. ' ' .. #lane .. ' ' .. lane .. (error or '')
end

local function meta_of(text)
    if not text then return nil end
    local flags, ready, crashes, first, size, from =
        string.match(text, '^(%a%a%a) (%d+) (%d+) ([%d-]+) (%d+) ()')
    if not flags then return nil end
    return {
        flags = flags, ready = ready, crashes = tonumber(crashes), first = first ~= '-' and first or nil,
        lane = string.sub(text, from, from + size - 1), error = string.sub(text, from + size),
    }
end

-- Metadata for a message in progress whose own is lost: PostgreSQL may keep it, and is asked before it runs again.
local function unknown() return meta_text('aec', whole(due_now), 0, nil, '') end

local function lane_of(body)
    local id = id_of(body)
    local meta = id and meta_of(redis.call('HGET', IDS, id))
    return meta and meta.lane or ''
end

-- A lane with messages is in the rotation exactly once.
local function push(body, lane)
    if laned then
        if redis.call('LPUSH', LANE .. lane, body) == 1 then redis.call('RPUSH', LANES, lane) end
        body = PLACE
    end
    redis.call('LPUSH', MAIN, body)
end

-- Due messages are pushed before new ones, so that the main list stays ordered by due time.
local function pump()
    local moved = 0
    while moved < PUMP_MAX do
        local due = redis.call('ZRANGEBYSCORE', DELAYED, '-inf', due_now / 1000, 'LIMIT', 0, CHUNK)
        if #due == 0 then return end
        redis.call('ZREM', DELAYED, unpack(due))
        if laned then
            for i = 1, #due do push(due[i], lane_of(due[i])) end
        else
            redis.call('LPUSH', MAIN, unpack(due))
        end
        moved = moved + #due
    end
end

local function make_ready(body, ready_us, lane)
    if ready_us > due_now then
        redis.call('ZADD', DELAYED, ready_us / 1000, body)
    else
        push(body, lane)
    end
end

-- A worker's claim: token, times of the claim and of the first attempt, crashes, whether it runs isolated, the worker,
-- the body.
local function record_text(token, claimed, first, crashes, alone, worker, body)
    return token .. ' ' .. claimed .. ' ' .. first .. ' ' .. crashes .. ' ' .. alone .. ' ' .. worker .. '\n' .. body
end

local function record_of(text)
    local token, claimed, first, crashes, alone, worker, from =
        string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d) (%S*)\n()')
    if not token then return nil end
    return {
        token = token, claimed = claimed, first = first, crashes = tonumber(crashes), alone = alone == '1',
        worker = worker, body = string.sub(text, from),
    }
end

local function holds(record, token)
    return record and string.sub(record, 1, #token + 1) == token .. ' '
end

-- A message in progress has a body, a claim and a lease, written and removed together; one is missing only after a
-- loss.
local function claims_are_whole()
    local in_work = redis.call('LLEN', PROCESSING)
    return in_work == redis.call('HLEN', CLAIMS) and in_work == redis.call('ZCARD', LEASES)
end

-- Ends the claims of these messages; the caller decides what becomes of them. Searched from the tail, the oldest end.
local function let_go(ids, bodies)
    if #ids == 0 then return end
    local locks = {}
    for i = 1, #ids do
        redis.call('LREM', PROCESSING, -1, bodies[i])
        locks[i] = LOCK .. ids[i]
    end
    many('HDEL', CLAIMS, ids)
    many('ZREM', LEASES, ids)
    redis.call('DEL', unpack(locks))
end

-- A settled message's key expires after its retention; the stored deadline decides, the TTL only cleans up.
local function end_keys(ids, keys, retention_us)
    if #keys == 0 then return end
    local names = {}
    for i = 1, #keys do names[i] = KEY .. keys[i] end
    local known = redis.call('MGET', unpack(names))
    local expiry, gone_at = whole(due_now + retention_us), expires_at(retention_us)
    for i = 1, #names do
        if known[i] == ids[i] .. ' ' then
            redis.call('SET', names[i], ids[i] .. ' ' .. expiry, 'PXAT', gone_at)
        end
    end
end

local function write_log(lines)
    if #lines == 0 then return end
    local stamp = '{"timestamp":"' .. iso(due_now) .. '",'
    for i = 1, #lines do lines[i] = stamp .. lines[i] end
    many('LPUSH', LOG, lines)
    redis.call('LTRIM', LOG, 0, LOG_MAX - 1)
end
