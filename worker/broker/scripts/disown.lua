-- Note that a request has no entry on any queue, unless something has happened to it since it was looked for.
--
-- KEYS: request hash
-- ARGV: status, epoch, claimed, entry as they were, '' for what is not there
-- Returns 1 if so, else 0. It is then queued, with an empty `entry`: submitting it again enqueues it.

local state = redis.call('HMGET', KEYS[1], 'status', 'epoch', 'claimed', 'entry', 'seq')
for i = 1, 4 do
  if (state[i] or '') ~= ARGV[i] then return 0 end
end
redis.call('HSET', KEYS[1], 'status', 'queued', 'entry', '', 'since', state[5] or '0')
return 1
