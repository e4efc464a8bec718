-- Take an entry whose request has ended off its queue, leaving a dead letter where one is due.
--
-- KEYS: queue stream, dead-letter stream; the request hash too, where one script may touch it: on a single
--       server, not in a cluster
-- ARGV: group, entry id, error or '' for no dead letter, attempts, field r, dead letters kept
-- Returns 1, or 0 when an earlier try had done it, or -1 and nothing is done: the request has not ended, since
-- the server has come back without the last it had confirmed.

if KEYS[3] and redis.call('HMGET', KEYS[3], 'status')[1] ~= 'finished'
   and #redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2]) > 0 then
  return -1
end
local acked = redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
local deleted = redis.call('XDEL', KEYS[1], ARGV[2])
if acked == 0 and deleted == 0 then return 0 end
if ARGV[3] ~= '' then
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[6], '*', 'r', ARGV[5], 'error', ARGV[3],
             'attempts', ARGV[4])
end
return 1
