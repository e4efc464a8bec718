-- Claim a request for one worker: from here on only that worker, in this epoch, may write to its keys.
--
-- KEYS: request hash, event log; the entry's queue stream too, where one script may touch it: on a single
--       server, not in a cluster
-- ARGV: queue entry id, number of its stream, times delivered, consumer, model, deadline in ms or '', TTL ms,
--       most attempts, attempts after which a request is quarantined, 1 if a quarantined one may be claimed, group,
--       1 if it is no wonder that the worker before fell silent, since Redis could not be reached,
--       an entry's place that this one may take: it is not on its queue any more
-- Returns {verdict, now ms, ...}
--   'run' | 'cancelled' | 'expired' | 'poison', now, epoch, attempts, logged tokens, {event, ...},
--   1 if the worker before fell silent, else 0
--     claimed; in the last three cases the caller ends the request without running it
--   'finished', now, dead-letter error or ''     this entry's request has ended; only settling it is left
--   'duplicate', now, place or ''                another entry has ended the request, or started it: its place
--   'stale', now                                 the entry is not this consumer's: it has gone to someone else
--                                                since, or the server has come back without it
--   'quarantined', now                               not claimed: it may be what killed its earlier workers
--
-- Field `entry` is the client's note of what it enqueued last, see also disown.lua; `claimed` is the entry that started the request,
-- with its stream, since entries of different streams may have equal ids. A request that runs has its entry on
-- the queue, whatever the server forgets: the claim looks for it, and only the end takes it off. Should somebody
-- else take it off, another entry of the request may take its place. `deliveries` is 0 while an entry that was put
-- back so waits to be delivered, and its worker goes on meanwhile.
--
-- An attempt that logged output and then ended in silence is a quarter of one: more likely than not something
-- else killed the worker. `since` is where the log ended when it began, `spared` how many such there were.
-- `silent` is described in excuse.lua.

local place, deliveries = ARGV[2] .. '/' .. ARGV[1], tonumber(ARGV[3])
local consumer, model = ARGV[4], ARGV[5]
local deadline, ttl, most = tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])
local suspicious, quarantined, group, excused = tonumber(ARGV[9]), ARGV[10] == '1', ARGV[11], ARGV[12] == '1'
local gone = ARGV[13]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local state = redis.call('HMGET', KEYS[1], 'status', 'epoch', 'attempts', 'claimed', 'deliveries', 'worker',
                         'cancel', 'seq', 'dead', 'since', 'spared', 'silent', 'entry')
local status, claimed = state[1], state[4]
local epoch, attempts = tonumber(state[2] or '0'), tonumber(state[3] or '0')
local delivered = tonumber(state[5] or '0')
local seq, since, spared = tonumber(state[8] or '0'), tonumber(state[10] or '0'), tonumber(state[11] or '0')

if status == 'finished' then
  if claimed and claimed ~= place then return {'duplicate', now, ''} end
  return {'finished', now, state[9] or ''}
end
if claimed and claimed ~= place and claimed ~= gone then return {'duplicate', now, claimed} end
if claimed == place and deliveries < delivered then return {'stale', now} end
if KEYS[3] then
  local owned = redis.pcall('XPENDING', KEYS[3], group, ARGV[1], ARGV[1], 1)
  if owned.err or not owned[1] or owned[1][2] ~= consumer then return {'stale', now} end
end

-- The same delivery claimed twice is a repetition whose first reply was lost.
local repeated = status == 'running' and state[6] == consumer and claimed == place and deliveries == delivered
local silent = state[12] or ''
local put_back = claimed == place and delivered == 0
local abandoned = status == 'running' and not repeated and not put_back
if status == 'running' and not repeated then
  if excused or put_back then
    attempts = attempts - 1
  else
    local quarter = seq > since
    if quarter then spared = spared + 1 end
    silent = silent .. state[6] .. (quarter and '+ ' or ' ')
  end
end
local verdict = 'run'
if state[7] then verdict = 'cancelled'
elseif deadline and now >= deadline then verdict = 'expired'
elseif attempts - spared * 0.75 + (repeated and 0 or 1) > most then verdict = 'poison'
elseif not repeated and attempts >= suspicious and not quarantined then return {'quarantined', now} end

if not status then redis.call('DEL', KEYS[2]) end
if not repeated then
  epoch = epoch + 1
  attempts = attempts + 1
  redis.call('HSET', KEYS[1], 'status', 'running', 'epoch', epoch, 'attempts', attempts, 'worker', consumer,
             'claimed', place, 'deliveries', deliveries, 'started', now, 'since', seq)
  if silent ~= '' then redis.call('HSET', KEYS[1], 'spared', spared, 'silent', silent) end
  if (state[13] or '') == '' then redis.call('HSET', KEYS[1], 'entry', ARGV[1]) end
  redis.call('HSETNX', KEYS[1], 'model', model)
  redis.call('HSETNX', KEYS[1], 'created', now)
end
redis.call('PEXPIRE', KEYS[1], ttl)
redis.call('PEXPIRE', KEYS[2], ttl)

local events = {}
for _, item in ipairs(redis.call('XRANGE', KEYS[2], '-', '+')) do
  for f = 1, #item[2], 2 do
    if item[2][f] == 'e' then events[#events + 1] = item[2][f + 1] end
  end
end

return {verdict, now, epoch, attempts, seq, events, abandoned and 1 or 0}
