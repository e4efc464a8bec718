-- Writes lines of a batch's results. A number that has a line in either file keeps it: the first write wins.
-- KEYS: output, errors. ARGV: which (1 or 2), TTL ms, then alternating number and line. Returns how many were new.
local new = 0
for i = 3, #ARGV, 2 do
  if redis.call('HEXISTS', KEYS[3 - ARGV[1]], ARGV[i]) == 0 then
    new = new + redis.call('HSETNX', KEYS[tonumber(ARGV[1])], ARGV[i], ARGV[i + 1])
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return new
