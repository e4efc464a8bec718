-- Take entries that no worker has had yet, the most urgent and least served first.
--
-- KEYS: the queue streams, by priority and then by lane (the same number of lanes for each of the three
--       priorities); last, the service hash
-- ARGV: group, consumer, service TTL ms, credits for high, normal and low, ageing ms, and for high, normal and low
--       by how many ms such an entry counts as arrived later than it has
-- Returns {entries, watch}
--   entries: {stream number, entry id, field r or nil, charge}, in the order taken
--   watch: for each stream the id after which an entry not yet delivered would lie; '' where entries wait
--          without credits
--
-- Among streams the order is: class of the oldest entry (the ageing times until its virtual arrival, rounded up:
-- the priority, raised by one for each that it has waited), then service of the lane, then virtual arrival. An
-- entry needs credits of its class. Service is a virtual token counter per lane: a lane that
-- had nothing waiting starts level with the least served lane that had (Sheng et al., "Fairness in Serving
-- Large Language Models", OSDI 2024). An entry is charged for its input here, at four bytes a token; output
-- is charged by whoever computes it.

local group, consumer = ARGV[1], ARGV[2]
local ttl = ARGV[3]
local credits = {tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])}
local ageing, delay = tonumber(ARGV[7]), {tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])}
local streams = #KEYS - 1
local lanes = streams / 3
local service = KEYS[#KEYS]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Ids have two parts of up to 20 digits, more than a Lua number holds.
local function below(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

local function after(a, b)
  local a_ms, a_seq = a:match('^(%d+)-(%d+)$')
  local b_ms, b_seq = b:match('^(%d+)-(%d+)$')
  if a_ms ~= b_ms then return below(b_ms, a_ms) end
  return below(b_seq, a_seq)
end

local function last_delivered(key)
  local groups = redis.pcall('XINFO', 'GROUPS', key)
  if groups.err then return nil end
  for _, fields in ipairs(groups) do
    local name, id
    for i = 1, #fields, 2 do
      if fields[i] == 'name' then name = fields[i + 1] end
      if fields[i] == 'last-delivered-id' then id = fields[i + 1] end
    end
    if name == group then return id end
  end
  redis.call('XGROUP', 'CREATE', key, group, '0')
  return '0-0'
end

local stored = {}
local watch, last = {}, {}
for i = 1, streams do
  watch[i] = '0-0'
  if redis.call('XLEN', KEYS[i]) > 0 then
    last[i] = last_delivered(KEYS[i])
    watch[i] = last[i] or '0-0'
  end
end
if next(last) then
  local flat = redis.call('HGETALL', service)
  for i = 1, #flat, 2 do stored[flat[i]] = flat[i + 1] end
end

-- A peek reads the whole entry, so the ids found are kept: they stay the oldest until someone takes them.
local changed = {}
local function look(i)
  local field = 'head:' .. i
  local id = stored[field]
  if not id or not after(id, last[i]) then
    local found = redis.pcall('XRANGE', KEYS[i], '(' .. last[i], '+', 'COUNT', 1)
    if found.err or #found == 0 then return nil end
    id = found[1][1]
    stored[field] = id
    changed[field] = id
  end
  local priority = math.floor((i - 1) / lanes)
  local arrival = math.min(now, tonumber(id:match('^(%d+)-'))) + delay[priority + 1]
  return {lane = (i - 1) % lanes, arrival = arrival, class = math.max(0, math.ceil((arrival - now) / ageing))}
end

local level = tonumber(stored.level or '0')
local heads, served, backlogged = {}, {}, {}
for i in pairs(last) do
  local head = look(i)
  if head then
    heads[i] = head
    backlogged[head.lane] = true
    served[head.lane] = math.max(level, tonumber(stored[tostring(head.lane)] or '0'))
  end
end

local function before(a, b)
  if a.class ~= b.class then return a.class < b.class end
  if served[a.lane] ~= served[b.lane] then return served[a.lane] < served[b.lane] end
  return a.arrival < b.arrival
end

local taken = {}
while true do
  local best
  for i, head in pairs(heads) do
    if #taken < credits[head.class + 1] and (not best or before(head, heads[best])) then best = i end
  end
  if not best then break end
  local reply = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1, 'STREAMS', KEYS[best], '>')
  if reply then
    local id, fields = reply[1][2][1][1], reply[1][2][1][2]
    local body = false
    for f = 1, #fields, 2 do
      if fields[f] == 'r' then body = fields[f + 1] end
    end
    local lane = heads[best].lane
    local charge = 1 + math.floor((body and #body or 0) / 4)
    served[lane] = served[lane] + charge
    taken[#taken + 1] = {best, id, body, charge}
    last[best] = id
    watch[best] = id
    heads[best] = look(best)
  else
    heads[best] = nil
  end
end

for i in pairs(heads) do watch[i] = '' end
if #taken > 0 then
  local least
  for lane in pairs(backlogged) do
    changed[tostring(lane)] = string.format('%.0f', served[lane])
    if not least or served[lane] < least then least = served[lane] end
  end
  changed.level = string.format('%.0f', math.max(level, least))
end
if next(changed) then
  local flat = {}
  for field, value in pairs(changed) do
    flat[#flat + 1] = field
    flat[#flat + 1] = value
  end
  redis.call('HSET', service, unpack(flat))
  redis.call('PEXPIRE', service, ttl)
end
return {taken, watch}
