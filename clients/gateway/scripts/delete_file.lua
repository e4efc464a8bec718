-- Deletes a file's metadata unless a batch uses the file.
-- KEYS: file. ARGV: none. Returns 0 while in use, else 1; the caller deletes the lines.
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(field, 1, 5) == 'used:' then return 0 end
end
redis.call('DEL', KEYS[1])
return 1
