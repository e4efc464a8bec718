-- Renew this worker's leases and its own record.
--
-- KEYS: the queue streams; last, the worker hash
-- ARGV: group, consumer, lease ms, how long the worker has served in ms, number of worker fields, field, value,
--       ..., then for each stream the number of entries owned, followed by their ids
-- Returns {now ms, {{stream number, entry id}, ...} now owned by someone else, number of untracked entries, the same of those
--          that are on their stream no more}
--
-- An entry that this consumer owns without knowing it (the reply that brought it was lost, or it was dropped)
-- is untracked: it is made idle beyond the lease, so that the next reclaim, by anyone, takes it. Entries that
-- are on their stream and nobody's are not reported: the request's epoch decides about them.

local group, consumer, lease = ARGV[1], ARGV[2], ARGV[3]
local worker = KEYS[#KEYS]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Returns the set of those that are renewed: an entry that is deleted is dropped from what is pending.
local function renew(key, ids, idle)
  local renewed = {}
  for first = 1, #ids, 1000 do
    local call = {'XCLAIM', key, group, consumer, 0}
    for i = first, math.min(first + 999, #ids) do call[#call + 1] = ids[i] end
    call[#call + 1] = 'IDLE'
    call[#call + 1] = idle
    call[#call + 1] = 'JUSTID'
    for _, id in ipairs(redis.call(unpack(call))) do renewed[id] = true end
  end
  return renewed
end

local at = 6 + 2 * tonumber(ARGV[5])
if at > 6 then
  -- A script that has begun to write may go on when memory is full, and this must: it is what keeps requests
  -- from moving and clients from seeing no worker.
  redis.call('PEXPIRE', worker, lease)
  -- `started` is written each time: the record may be that of a worker of the same name that has just died.
  redis.call('HSET', worker, 'updated', now, 'started', now - tonumber(ARGV[4]), unpack(ARGV, 6, at - 1))
  redis.call('PEXPIRE', worker, lease)
end

local lost, untracked, missing = {}, 0, {}
for i = 1, #KEYS - 1 do
  local count = tonumber(ARGV[at])
  local owned, mine, stale = {}, {}, {}
  for a = at + 1, at + count do owned[ARGV[a]] = true end
  at = at + 1 + count
  local pending = redis.call('EXISTS', KEYS[i]) == 1
    and redis.pcall('XPENDING', KEYS[i], group, '-', '+', 100000, consumer)
  if pending and not pending.err then
    for _, item in ipairs(pending) do
      local list = owned[item[1]] and mine or stale
      list[#list + 1] = item[1]
      owned[item[1]] = nil
    end
    local renewed = renew(KEYS[i], mine, 0)
    for _, id in ipairs(mine) do
      if not renewed[id] then owned[id] = true end
    end
    renew(KEYS[i], stale, lease)
    untracked = untracked + #stale
  end
  for id in pairs(owned) do
    local owner = pending and not pending.err and redis.call('XPENDING', KEYS[i], group, id, id, 1)[1]
    if owner then
      lost[#lost + 1] = {i, id}
    elseif #redis.call('XRANGE', KEYS[i], id, id) == 0 then
      missing[#missing + 1] = {i, id}
    end
  end
end
return {now, lost, untracked, missing}
