-- End a request: its log becomes one delta with everything and the done event, and expires.
--
-- KEYS: request hash, event log, channel
-- ARGV: epoch, consumer, output tokens in all, delta with everything or '', delta that subscribers lack or '',
--       done event, finish reason, TTL ms, PUBLISH or SPUBLISH, dead-letter error or ''
-- Returns {'ok'}, also when an earlier try had done it, or {'lost', status or '', epoch or ''}

local state = redis.call('HMGET', KEYS[1], 'status', 'epoch', 'worker')
local mine = state[2] == ARGV[1] and state[3] == ARGV[2]
if mine and state[1] == 'finished' then return {'ok'} end
if not mine or state[1] ~= 'running' then return {'lost', state[1] or '', state[2] or ''} end

local total, whole, rest, done = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local reason, ttl, publish, dead = ARGV[7], ARGV[8], ARGV[9], ARGV[10]

local time = redis.call('TIME')
-- Trimming keeps the stream's last id, so a reader that waits after it sees what follows. It also comes
-- first because a script that has written may go on writing when memory is full.
redis.call('XTRIM', KEYS[2], 'MAXLEN', 0)
if whole ~= '' then redis.call('XADD', KEYS[2], '*', 'e', whole) end
redis.call('XADD', KEYS[2], '*', 'e', done)
redis.call('HSET', KEYS[1], 'status', 'finished', 'finish_reason', reason, 'seq', total,
           'finished', time[1] * 1000 + math.floor(time[2] / 1000))
if dead ~= '' then redis.call('HSET', KEYS[1], 'dead', dead) end
if rest ~= '' then redis.call(publish, KEYS[3], rest) end
redis.call(publish, KEYS[3], done)
redis.call('PEXPIRE', KEYS[1], ttl)
redis.call('PEXPIRE', KEYS[2], ttl)
return {'ok'}
