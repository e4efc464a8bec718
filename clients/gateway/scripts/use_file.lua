-- Notes that a batch reads a file, which is kept at least as long from now on.
-- KEYS: file, lines. ARGV: batch id, TTL ms. Returns how many lines there are, 0 where the file is gone.
if redis.call('EXISTS', KEYS[1], KEYS[2]) < 2 then return 0 end
redis.call('HSET', KEYS[1], 'used:' .. ARGV[1], 1)
for _, key in ipairs(KEYS) do
  if redis.call('PTTL', key) < tonumber(ARGV[2]) then redis.call('PEXPIRE', key, ARGV[2]) end
end
return redis.call('HLEN', KEYS[2])
