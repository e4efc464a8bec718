-- Rate limit with bursts for one API key: the generic cell rate algorithm (GCRA).
-- KEYS: theoretical arrival time in ms. ARGV: ms per request, burst, number of requests now.
-- Returns ms to wait, 0 if allowed. More requests than the burst are allowed when the key has been idle.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local interval, burst, count = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local due = math.max(now, tonumber(redis.call('GET', KEYS[1]) or '0'))
local wait = due + interval * (math.min(count, burst) - burst) - now
if wait > 0 then return math.ceil(wait) end
due = due + interval * count
redis.call('SET', KEYS[1], string.format('%d', math.ceil(due)), 'PX', math.max(1, math.ceil(due - now)))
return 0
