-- Note that another entry has taken the place of the one by which a request was claimed, or only ask if it may.
--
-- KEYS: request hash
-- ARGV: epoch, consumer, place of the old entry, then to note it: place of the new entry, its id, times delivered
-- Returns 1, or 0 when this claim is over.

local state = redis.call('HMGET', KEYS[1], 'status', 'epoch', 'worker', 'claimed')
if state[1] ~= 'running' or state[2] ~= ARGV[1] or state[3] ~= ARGV[2] or state[4] ~= ARGV[3] then return 0 end
if ARGV[4] then
  redis.call('HSET', KEYS[1], 'claimed', ARGV[4], 'entry', ARGV[5], 'deliveries', ARGV[6])
end
return 1
