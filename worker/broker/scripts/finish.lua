-- End a request: its log becomes one delta with everything and the done event, and expires.
--
-- KEYS: request hash, event log, channel
-- ARGV: epoch, output tokens in all, delta with everything or '', delta that subscribers lack or '',
--       done event, finish reason, TTL ms, PUBLISH or SPUBLISH, dead-letter error or ''
-- Returns {'ok'}, also when an earlier try had done it, or {'lost', status or '', epoch or ''}

local state = redis.call('HMGET', KEYS[1], 'status', 'epoch')
if state[1] == 'finished' and state[2] == ARGV[1] then return {'ok'} end
if state[1] ~= 'running' or state[2] ~= ARGV[1] then return {'lost', state[1] or '', state[2] or ''} end

local time = redis.call('TIME')
-- Trimming keeps the stream's last id, so a reader that waits after it sees what follows. It also comes
-- first because a script that has written may go on writing when memory is full.
redis.call('XTRIM', KEYS[2], 'MAXLEN', 0)
if ARGV[3] ~= '' then redis.call('XADD', KEYS[2], '*', 'e', ARGV[3]) end
redis.call('XADD', KEYS[2], '*', 'e', ARGV[5])
redis.call('HSET', KEYS[1], 'status', 'finished', 'finish_reason', ARGV[6], 'seq', ARGV[2],
           'finished', time[1] * 1000 + math.floor(time[2] / 1000))
if ARGV[9] ~= '' then redis.call('HSET', KEYS[1], 'dead', ARGV[9]) end
if ARGV[4] ~= '' then redis.call(ARGV[8], KEYS[3], ARGV[4]) end
redis.call(ARGV[8], KEYS[3], ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[7])
redis.call('PEXPIRE', KEYS[2], ARGV[7])
return {'ok'}
