-- Take over entries whose worker has not renewed its lease.
--
-- KEYS: the queue streams, by priority and then by lane
-- ARGV: group, consumer, lease ms, room for high, normal and low, then for each stream the cursor that the
--       call before returned, '0-0' at first
-- Returns {entries, cursors}
--   entries: {stream number, entry id, field r or nil, times delivered}
--
-- The cursor stays where the room or the work of one call ran out, so that no entry is passed over for ever.

local group, consumer, lease = ARGV[1], ARGV[2], ARGV[3]
local room = {tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])}
local per_priority = #KEYS / 3
local rounds = 500

local entries, cursors = {}, {}
for i, key in ipairs(KEYS) do
  cursors[i] = ARGV[6 + i]
  local allowed = room[math.floor((i - 1) / per_priority) + 1]
  local summary = #entries < allowed and redis.call('EXISTS', key) == 1 and redis.pcall('XPENDING', key, group)
  if summary and not summary.err and summary[1] > 0 then
    repeat
      rounds = rounds - 1
      local reply = redis.call('XAUTOCLAIM', key, group, consumer, lease, cursors[i],
                               'COUNT', allowed - #entries)
      cursors[i] = reply[1]
      for _, entry in ipairs(reply[2]) do
        local body = false
        for f = 1, #entry[2], 2 do
          if entry[2][f] == 'r' then body = entry[2][f + 1] end
        end
        local pending = redis.call('XPENDING', key, group, entry[1], entry[1], 1)
        entries[#entries + 1] = {i, entry[1], body, pending[1][4]}
      end
    until cursors[i] == '0-0' or #entries >= allowed or rounds <= 0
  end
end
return {entries, cursors}
