-- Forget an ended request, so that its id can be submitted again.
--
-- KEYS: request hash, event log
-- Returns 1, or 0 and nothing is done while the request is queued or running.

local status = redis.call('HGET', KEYS[1], 'status')
if status and status ~= 'finished' then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
