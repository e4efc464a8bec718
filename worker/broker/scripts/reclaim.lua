-- Take over entries whose worker could have renewed its lease and has not.
--
-- KEYS: the queue streams, by priority and then by lane
-- ARGV: group, consumer, lease ms, credits for high, normal and low, how many entries may be taken that were
--       delivered so many times, those times, then in ms by this server's clock when this consumer's leases were
--       last renewed, since when that has gone without a gap, and when Redis could last not be reached; then
--       for each stream the cursor that the call before returned, '0-0' at first
-- Returns nil if others may not have been able to renew their leases lately, else {entries, cursors, passed}
--   entries: {stream number, entry id, field r or nil, times delivered, 1 if the lease was not renewed since
--             Redis could not be reached, else 0}
--   passed: for high, normal and low, how many entries were left because they had been delivered so often
--
-- What this consumer's renewals show is looked at here, not before: a call may wait in a server that does not
-- answer, and is executed with the leases of all others ended meanwhile.
--
-- The cursor stays where the credits or the work of one call ran out, so that no entry is passed over for ever.

local group, consumer, lease = ARGV[1], ARGV[2], ARGV[3]
local credits = {tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])}
local often, times = tonumber(ARGV[7]), tonumber(ARGV[8])
local renewed, since, outage = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local per_priority = #KEYS / 3
local page, pages = 100, 500

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local longest_gap = tonumber(lease) / 2
if now < renewed or now - renewed > longest_gap or now - since < longest_gap then return nil end

local entries, cursors, passed = {}, {}, {0, 0, 0}

local function take(stream, key, item)
  local claimed = redis.call('XCLAIM', key, group, consumer, lease, item[1])[1]
  if not claimed then return end  -- it is not on the stream any more, and now nobody's either
  local body = false
  for f = 1, #claimed[2], 2 do
    if claimed[2][f] == 'r' then body = claimed[2][f + 1] end
  end
  entries[#entries + 1] = {stream, item[1], body, item[4] + 1, now - item[3] < outage and 1 or 0}
end

for i, key in ipairs(KEYS) do
  cursors[i] = ARGV[11 + i]
  local priority = math.floor((i - 1) / per_priority) + 1
  local allowed = credits[priority]
  local summary = #entries < allowed and redis.call('EXISTS', key) == 1 and redis.pcall('XPENDING', key, group)
  if summary and not summary.err and summary[1] > 0 then
    repeat
      pages = pages - 1
      local from = cursors[i] == '0-0' and '-' or '(' .. cursors[i]
      local silent = redis.call('XPENDING', key, group, 'IDLE', lease, from, '+', page)
      for _, item in ipairs(silent) do
        if #entries >= allowed then break end
        cursors[i] = item[1]
        if item[4] < times then
          take(i, key, item)
        elseif often > 0 then
          often = often - 1
          take(i, key, item)
        else
          passed[priority] = passed[priority] + 1
        end
      end
      local ended = #silent < page and (#silent == 0 or cursors[i] == silent[#silent][1])
      if ended then cursors[i] = '0-0' end
    until ended or #entries >= allowed or pages <= 0
  end
end
return {entries, cursors, passed}
