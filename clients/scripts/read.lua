-- State and events of a request at one moment.
-- KEYS: state, events. ARGV: entry id to read after, how many entries at most.
-- Returns {state as field, value, ..., entries, the last entry of all in a list}.
return {
  redis.call('HGETALL', KEYS[1]),
  redis.call('XRANGE', KEYS[2], '(' .. ARGV[1], '+', 'COUNT', ARGV[2]),
  redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1),
}
