-- Stores messages. ARGV: kind, then per message body, idempotency key, 'not_before delay' (empty: now), lane. Returns
-- the id under which each is stored.
local kind = ARGV[1]
local count = (#ARGV - 1) / 4
local ids, names, at = {}, {}, {}
for i = 1, count do
    ids[i] = string.sub(ARGV[4 * i - 2], 8, 43)
    if ARGV[4 * i - 1] ~= '' then
        names[#names + 1] = KEY .. ARGV[4 * i - 1]
        at[#names] = i
    end
end
local known = read_many('HMGET', IDS, ids)
local taken, answers, first_of = {}, {}, {}
for from = 1, #names, CHUNK do
    local found = redis.call('MGET', unpack(names, from, math.min(from + CHUNK - 1, #names)))
    for i = 1, #found do
        local id, expiry = string.match(found[i] or '', '^(%S+) (%d*)$')
        if id and (expiry == '' or tonumber(expiry) > due_now) then taken[at[from + i - 1]] = id end
    end
end

pump()
local stamp = '","created_at":"' .. iso(due_now) .. '"'
local now = whole(due_now)
local ready, metas, added = {}, {}, {}
for i = 1, count do
    local body, key, times, lane = ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i], ARGV[4 * i + 1]
    local id = ids[i]
    local first = key ~= '' and first_of[key]
    answers[i] = taken[i] or first or id
    if not (taken[i] or first) then
        if key ~= '' then first_of[key] = id end
        if not known[i] and not added[id] then
            added[id] = true
            if key ~= '' then redis.call('SET', KEY .. key, id .. ' ') end
            if string.sub(body, 45, 58) ~= ',"created_at":' then
                body = string.sub(body, 1, 43) .. stamp .. string.sub(body, 45)
            end
            local form = string.match(body, '^,"created_at":"[^"]*","action":', 45) and 'p' or 'e'
            local due = due_now
            if times ~= '' then
                local not_before, delay = string.match(times, '^(%d+) (%d+)$')
                due = math.max(due_now, tonumber(not_before)) + delay
            end
            metas[#metas + 1] = id
            metas[#metas + 1] = meta_text(kind .. form .. 'n', due == due_now and now or whole(due), 0, nil, lane)
            if due > due_now then
                redis.call('ZADD', DELAYED, due / 1000, body)
            elseif laned then
                push(body, lane)
            else
                ready[#ready + 1] = body
            end
        end
    end
end
many('HSET', IDS, metas)
many('LPUSH', MAIN, ready)
return {'OK', unpack(answers)}
