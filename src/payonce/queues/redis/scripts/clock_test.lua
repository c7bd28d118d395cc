-- Tests move both clocks. After a wipe the caller restores them from PostgreSQL.
local clock = redis.call('HMGET', 'payonce:test_clock', 'due_frozen', 'due_offset', 'lease_frozen', 'lease_offset')
if not clock[2] then return {'CLOCK'} end
local time = redis.call('TIME')
local real_now = time[1] * 1000000 + time[2]
local due_now = tonumber(clock[1]) or real_now + clock[2]
local lease_now = tonumber(clock[3]) or real_now + clock[4]
