-- Log and publish events of running requests, one of each, or only ask how requests stand.
--
-- KEYS: for each request its hash, event log and channel; in a cluster those of one request
-- ARGV: consumer, TTL ms, PUBLISH or SPUBLISH, then in msgpack for each request
--       {epoch, tokens before the event, tokens in it, the event or '' to ask}
-- Returns in msgpack for each request
--   {'ok', logged tokens, cancel flag or ''}     logged, now or by an earlier try of the same event
--   {'at', logged tokens, cancel flag or ''}     not logged: the log ends before or within the event
--   {'lost', status or '', epoch or ''}          this claim is over
--
-- A server that came back without its last second may have given the same epoch to two workers.

local consumer, ttl, publish = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local function emit(request, log, channel, epoch, seq, count, event)
  local state = redis.call('HMGET', request, 'status', 'epoch', 'worker', 'seq', 'cancel')
  if state[1] ~= 'running' or state[2] ~= tostring(epoch) or state[3] ~= consumer then
    return {'lost', state[1] or '', state[2] or ''}
  end

  local logged, cancel = tonumber(state[4] or '0'), state[5] or ''
  local verdict = 'ok'
  if logged < seq then
    verdict = 'at'
  elseif event ~= '' and logged == seq then
    redis.call('XADD', log, '*', 'e', event)
    logged = seq + count
    redis.call('HSET', request, 'seq', logged)
    if seq == 0 then
      local time = redis.call('TIME')
      redis.call('HSETNX', request, 'first_token', time[1] * 1000 + math.floor(time[2] / 1000))
    end
    redis.call(publish, channel, event)
  elseif logged < seq + count then
    verdict = 'at'
  end
  -- Renewed by halves: each renewal goes to the append-only file and to replicas.
  if redis.call('PTTL', request) < ttl / 2 then redis.call('PEXPIRE', request, ttl) end
  local log_ttl = redis.call('PTTL', log)
  if log_ttl ~= -2 and log_ttl < ttl / 2 then redis.call('PEXPIRE', log, ttl) end
  return {verdict, logged, cancel}
end

local replies = {}
for number, request in ipairs(cmsgpack.unpack(ARGV[4])) do
  local first = 3 * number - 2
  replies[number] = emit(KEYS[first], KEYS[first + 1], KEYS[first + 2], unpack(request))
end
return cmsgpack.pack(replies)
