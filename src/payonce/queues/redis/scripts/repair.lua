-- Completes messages in progress that have lost their body, claim or lease. ARGV: limit of messages to search. Returns
-- how many it put back, and how many it gave a body or a lease.
--   no lease: it gets one. A live worker renews it; otherwise the message is reaped when it ends.
--   no claim: its worker can neither renew nor settle it, but may run until its lease ends. Then the message goes back,
-- with its attempts.
--   no body: it is in the claim.
local put_back, completed = 0, 0
local deadline = (lease_now + declared[3]) / 1000
local in_work = redis.call('LLEN', PROCESSING)
if claims_are_whole() or in_work + redis.call('HLEN', CLAIMS) > tonumber(ARGV[1]) then return {'OK', 0, 0} end

local function lies_parked(id)
    for from = 0, redis.call('LLEN', FAILED) - 1, CHUNK do
        for _, body in ipairs(redis.call('LRANGE', FAILED, from, from + CHUNK - 1)) do
            if id_of(body) == id then return true end
        end
    end
end

-- A body without an id was moved here manually, and goes back unchanged.
local function put_in_line(id, body)
    if not id_of(body) then
        redis.call('LPUSH', MAIN, body)
        return
    end
    local meta = meta_of(redis.call('HGET', IDS, id)) or meta_of(unknown())
    if string.sub(meta.flags, 3) == 'P' then
        if not lies_parked(id) then redis.call('LPUSH', FAILED, body) end
        return
    end
    redis.call('HSET', IDS, id, meta_text(string.sub(meta.flags, 1, 2) .. 'c', meta.ready, meta.crashes, meta.first,
        meta.lane, 'its claim was lost in Redis'))
    if meta.crashes >= SUSPICIOUS then
        redis.call('ZADD', ALONE, due_now / 1000, body)
    else
        push(body, meta.lane)
    end
end

local function give_lease(id)
    redis.call('ZADD', LEASES, deadline, id)
    completed = completed + 1
end

local ids, bodies = {}, {}
for last = in_work - 1, 0, -CHUNK do
    local page = redis.call('LRANGE', PROCESSING, math.max(0, last - CHUNK + 1), last)
    for i = #page, 1, -1 do
        bodies[#bodies + 1] = page[i]
        ids[#bodies] = string.lower(id_of(page[i]) or hash_id(page[i]))
    end
end

-- The oldest first. One of several copies under one id is enough; equal bodies without an id are several messages.
local known, records, leases = {}, read_many('HMGET', CLAIMS, ids), read_many('ZMSCORE', LEASES, ids)
pump()
for i = 1, #ids do
    local id, body, record = ids[i], bodies[i], records[i] and record_of(records[i])
    if record and (known[id] or body ~= record.body) or not record and known[id] and id_of(body) then
        redis.call('LREM', PROCESSING, -1, body)
    elseif record or not leases[i] or tonumber(leases[i]) > lease_now / 1000 then
        if not leases[i] and not known[id] then give_lease(id) end
        known[id] = true
    else
        let_go({id}, {body})
        put_in_line(id, body)
        known[id], put_back = true, put_back + 1
    end
end

local claims = redis.call('HGETALL', CLAIMS)
for i = 1, #claims, 2 do
    local id, record = claims[i], record_of(claims[i + 1])
    if not known[id] and record and id_of(record.body) == id then
        redis.call('LPUSH', PROCESSING, record.body)
        if not redis.call('ZSCORE', LEASES, id) then redis.call('ZADD', LEASES, deadline, id) end
        known[id], completed = true, completed + 1
    elseif not known[id] then
        -- Foreign content.
        redis.call('HDEL', CLAIMS, id)
    end
end

-- A lease without a claim or body counts under a limit until it ends.
local over = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '-inf', lease_now / 1000)) do
    if not known[id] then over[#over + 1] = id end
end
many('ZREM', LEASES, over)
return {'OK', put_back, completed}
