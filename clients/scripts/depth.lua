-- How full a model's queues are.
-- KEYS: all queue streams of the model, by priority, then by lane. ARGV: consumer group, lanes.
-- Returns {now in ms, then for each priority {entries, of them delivered, id of the oldest waiting or ''}}.
local time = redis.call('TIME')
local reply = {time[1] * 1000 + math.floor(time[2] / 1000)}
local lanes = tonumber(ARGV[2])

local function milliseconds(id)
  return tonumber(string.match(id, '^%d+'))
end

for first = 1, #KEYS, lanes do
  local entries, delivered, oldest = 0, 0, ''
  for i = first, first + lanes - 1 do
    local length = redis.call('XLEN', KEYS[i])
    if length > 0 then
      local last = '-'
      for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[i])) do
        local group = {}
        for f = 1, #flat, 2 do
          group[flat[f]] = flat[f + 1]
        end
        if group['name'] == ARGV[1] then
          delivered = delivered + group['pending']
          last = '(' .. group['last-delivered-id']
        end
      end
      entries = entries + length
      local head = redis.call('XRANGE', KEYS[i], last, '+', 'COUNT', 1)[1]
      if head and (oldest == '' or milliseconds(head[1]) < milliseconds(oldest)) then
        oldest = head[1]
      end
    end
  end
  reply[#reply + 1] = {entries, delivered, oldest}
end
return reply
