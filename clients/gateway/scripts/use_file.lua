-- Marks a file as used by a batch, and raises its TTL to at least ARGV[2].
-- KEYS: file, lines. ARGV: batch id, TTL ms. Returns the number of lines, 0 if the file is lost.
if redis.call('EXISTS', KEYS[1], KEYS[2]) < 2 then return 0 end
redis.call('HSET', KEYS[1], 'used:' .. ARGV[1], 1)
for _, key in ipairs(KEYS) do
  if redis.call('PTTL', key) < tonumber(ARGV[2]) then redis.call('PEXPIRE', key, ARGV[2]) end
end
return redis.call('HLEN', KEYS[2])
