-- Lets requests of one API key pass at a steady rate with bursts: the generic cell rate algorithm.
-- KEYS: when the next request is due, in ms. ARGV: ms for each request, requests at once, how many now.
-- Returns ms to wait, 0 if they pass. More at once than the burst pass when nothing else is owed.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local interval, burst, count = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local due = math.max(now, tonumber(redis.call('GET', KEYS[1]) or '0'))
local wait = due + interval * (math.min(count, burst) - burst) - now
if wait > 0 then return math.ceil(wait) end
due = due + interval * count
redis.call('SET', KEYS[1], string.format('%d', math.ceil(due)), 'PX', math.max(1, math.ceil(due - now)))
return 0
