-- Deletes a file that no batch reads.
-- KEYS: file. ARGV: none. Returns 0 while a batch does, else 1; the lines are left to the caller.
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(field, 1, 5) == 'used:' then return 0 end
end
redis.call('DEL', KEYS[1])
return 1
