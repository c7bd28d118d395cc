-- Both clocks are the server's, in microseconds since 1970.
local time = redis.call('TIME')
local due_now = time[1] * 1000000 + time[2]
local lease_now = due_now
