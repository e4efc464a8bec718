-- Log and publish one event of a running request, or only ask how it stands.
--
-- KEYS: request hash, event log, channel
-- ARGV: epoch, consumer, tokens before the event, tokens in it, the event or '' to ask, TTL ms, PUBLISH or
--       SPUBLISH
-- Returns
--   {'ok', logged tokens, cancel flag or ''}     logged, now or by an earlier try of the same event
--   {'at', logged tokens, cancel flag or ''}     not logged: the log ends before or within the event
--   {'lost', status or '', epoch or ''}          this claim is over
--
-- A server that came back without its last second may have given the same epoch to two workers.

local state = redis.call('HMGET', KEYS[1], 'status', 'epoch', 'worker', 'seq', 'cancel')
if state[1] ~= 'running' or state[2] ~= ARGV[1] or state[3] ~= ARGV[2] then
  return {'lost', state[1] or '', state[2] or ''}
end

local logged, cancel = tonumber(state[4] or '0'), state[5] or ''
local seq, count, event = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local ttl = tonumber(ARGV[6])

local verdict = 'ok'
if logged < seq then
  verdict = 'at'
elseif event ~= '' and logged == seq then
  redis.call('XADD', KEYS[2], '*', 'e', event)
  logged = seq + count
  redis.call('HSET', KEYS[1], 'seq', logged)
  if seq == 0 then
    local time = redis.call('TIME')
    redis.call('HSETNX', KEYS[1], 'first_token', time[1] * 1000 + math.floor(time[2] / 1000))
  end
  redis.call(ARGV[7], KEYS[3], event)
elseif logged < seq + count then
  verdict = 'at'
end
-- Renewed by halves: each renewal goes to the append-only file and to replicas.
if redis.call('PTTL', KEYS[1]) < ttl / 2 then redis.call('PEXPIRE', KEYS[1], ttl) end
local log_ttl = redis.call('PTTL', KEYS[2])
if log_ttl ~= -2 and log_ttl < ttl / 2 then redis.call('PEXPIRE', KEYS[2], ttl) end
return {verdict, logged, cancel}
