//! The scripts, one for each step. Redis runs a script alone, from its first command to its last, and
//! replicates and logs what it wrote as one transaction: that is what makes a step atomic.
//!
//! A record is one hash:
//!
//! | field | what it is |
//! |---|---|
//! | `id` | the identity's digest, 32 bytes |
//! | `state` | `in-flight`, `unknown`, `completed` or `released` |
//! | `token` | the fence, and the nonce in hexadecimal: `1795276359000000 00…ff` |
//! | `print` | the fingerprint, 33 bytes |
//! | `at` | this layout's version (`1`), the attempt's number, and in µs since 1970: created, claimed, lease until, settled (`0` for not yet), expires, purge |
//! | `label` | operation, start of the key, and the scope's segments as netstrings: `6:orders,` |
//! | `outcome` | its byte form, if completed |
//! | `steps` | the byte form of the finished steps, if there are any, until it is completed; `bare-bytes` is how many of them are no step |
//! | `waited` | if somebody waits for the attempt in flight |
//! | `resolved` | if somebody decided: the text form of that |
//! | `note` | if the claim said something of its request |
//!
//! Tokens are compared as text, so that no number of 64 bits is rounded. Arithmetic is done on µs since
//! 1970, which a Lua number holds exactly until the year 2255; what lies later is written as "never".
//!
//! In flight and unknown records have no TTL (R8). Settled ones have theirs rounded up to the next
//! millisecond, and every script looks at the time itself. A script writes with `HSET` first: where the
//! server has no memory left it fails there, with nothing written. Steps that end an attempt begin with
//! a `PERSIST` that changes nothing, or with an `HDEL`, after which Redis lets a script go on: a full server refuses claims,
//! and still takes the outcomes of attempts that run.

/// Reads the record, the time, and what is in `at`.
const READ: &str = r"
local key = KEYS[1]
local r = redis.call('HMGET', key, 'id', 'state', 'token', 'at', 'print', 'waited')
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local stamp = t[1] .. string.sub('00000' .. t[2], -6)
local NEVER = '18446744073709551615'
local ENDLESS = ' ' .. NEVER .. ' ' .. NEVER
-- The head is the layout, the attempt, and when it was created and claimed.
local head, lease, settled, expires, purge
if r[2] then
  head, lease, settled, expires, purge =
    string.match(r[4], '^(1 %d+ %d+ %d+) (%d+) (%d+) (%d+) (%d+)$')
  if not purge then return redis.error_reply('SEMEL a record has another layout than version 1') end
end
local function text(n)
  if n >= 9007199254740992 then return NEVER end
  return string.format('%.0f', n)
end
local function fence_after(token)
  if token then
    local least = string.match(token, '^%d+') + 1
    if least > now then return text(least) end
  end
  return stamp
end
local function settle(till, gone)
  return head .. ' ' .. lease .. ' ' .. stamp .. ' ' .. till .. ' ' .. gone
end
local function answer(outcome, resolved, steps)
  return {r[1] or ARGV[1], '0', stamp, r[2], r[3], r[4], r[5], outcome or '', resolved or '', steps or ''}
end
";

/// Sets the time at which Redis may remove the record.
const EXPIRE: &str = r"
local function expire(at)
  if at ~= NEVER then
    redis.call('PEXPIREAT', key, string.format('%.0f', math.ceil(at / 1000)))
  end
end
";

/// Tells waiters, where there are any: every subscriber gets every message, in a Cluster over all nodes.
/// May be forbidden to this user, which must not fail a step that has been done.
const TELL: &str = r"
local function tell(channel)
  if not r[6] then return end
  redis.call('HDEL', key, 'waited')
  redis.pcall('PUBLISH', channel, ARGV[1])
end
";

/// `digest nonce fingerprint lease retry label channel touch bare-bytes note`
const CLAIM: &str = r"
local state = r[2]
local number, created = '1', stamp
local gone = state
if state and now < tonumber(purge) then
  if state == 'released' then
    if r[5] ~= ARGV[3] then
      local steps = redis.call('HGET', key, 'steps') or ''
      if #steps > tonumber(ARGV[9]) then return answer('', '', steps) end
    end
  elseif now >= tonumber(expires) or r[5] ~= ARGV[3] then
    return answer()
  elseif state == 'completed' then
    if ARGV[8] == '1' then
      redis.call('HDEL', key, 'steps')
      redis.call('HSET', key, 'state', state)
    end
    return answer(redis.call('HGET', key, 'outcome'))
  elseif state == 'in-flight' and string.match(r[3], ' (.*)$') == ARGV[2] then
    if ARGV[8] == '1' then redis.call('HSET', key, 'state', state) end
    return answer()
  elseif state == 'in-flight' and now < tonumber(lease) then
    return answer()
  elseif ARGV[5] == '1' then
    -- Goes on below.
  elseif state == 'in-flight' then
    redis.call('HSET', key, 'state', 'unknown', 'at',
      settle(NEVER, NEVER))
    tell(ARGV[7])
    return answer()
  else
    return answer()
  end
  gone = false
  number, created = string.match(head, '^1 (%d+) (%d+)')
  number = text(number + 1)
end
local token = fence_after(r[3]) .. ' ' .. ARGV[2]
local note = {}
if ARGV[10] ~= '' then note = {'note', ARGV[10]} end
redis.call('HSET', key, 'id', ARGV[1], 'state', 'in-flight', 'token', token, 'print', ARGV[3], 'at',
  '1 ' .. number .. ' ' .. created .. ' ' .. stamp .. ' ' .. text(now + ARGV[4]) .. ' 0' .. ENDLESS,
  'label', ARGV[6], unpack(note))
if state and not note[1] then redis.call('HDEL', key, 'note') end
if gone then redis.call('HDEL', key, 'outcome', 'resolved', 'steps', 'waited') end
if gone or state == 'released' then
  redis.call('PERSIST', key)
elseif state then
  tell(ARGV[7])
end
return {ARGV[1], '1', token, number, created}
";

/// `digest token lease`
const RENEW: &str = r"
if r[3] ~= ARGV[2] or r[2] ~= 'in-flight' then return answer() end
local till = now + ARGV[3]
if till > tonumber(lease) then
  redis.call('PERSIST', key)
  redis.call('HSET', key, 'at',
    head .. ' ' .. text(till) .. ' ' .. settled .. ENDLESS)
end
return {r[1], '1'}
";

/// `digest token outcome replay tombstone channel touch`
const COMPLETE: &str = r"
local state = r[2]
if r[3] ~= ARGV[2] or state == 'released' then return answer() end
if state == 'completed' then
  if ARGV[7] == '1' then redis.call('HSET', key, 'state', state) end
  return answer(redis.call('HGET', key, 'outcome'))
end
expires = now + ARGV[4]
purge = text(expires + ARGV[5])
redis.call('HDEL', key, 'steps')
redis.call('HSET', key, 'state', 'completed', 'outcome', ARGV[3], 'at',
  settle(text(expires), purge))
expire(purge)
tell(ARGV[6])
return {r[1], '1'}
";

/// `digest token kept kept-with-steps channel bare-bytes`
const ABANDON: &str = r"
local state = r[2]
if r[3] ~= ARGV[2] or (state ~= 'in-flight' and state ~= 'unknown') then return answer() end
local till = text(now + (redis.call('HSTRLEN', key, 'steps') > tonumber(ARGV[6]) and ARGV[4] or ARGV[3]))
redis.call('PERSIST', key)
redis.call('HSET', key, 'state', 'released', 'at',
  settle(till, till))
expire(till)
tell(ARGV[5])
return {r[1], '1'}
";

/// `digest token channel`
const MARK_UNKNOWN: &str = r"
if r[3] ~= ARGV[2] or r[2] ~= 'in-flight' then return answer() end
redis.call('PERSIST', key)
redis.call('HSET', key, 'state', 'unknown', 'at',
  settle(NEVER, NEVER))
tell(ARGV[3])
return {r[1], '1'}
";

/// `digest token step kept-bytes most-bytes touch`
const KEEP_STEP: &str = r"
local state = r[2]
if r[3] ~= ARGV[2] or (state ~= 'in-flight' and state ~= 'unknown') then return answer() end
local steps = redis.call('HGET', key, 'steps') or ''
local kept = tonumber(ARGV[4])
if #steps ~= kept or #steps + #ARGV[3] > tonumber(ARGV[5]) then
  if ARGV[6] == '1' and string.sub(steps, kept + 1, kept + #ARGV[3]) == ARGV[3] then
    redis.call('HSET', key, 'state', state)
  end
  return answer('', '', steps)
end
redis.call('PERSIST', key)
redis.call('HSET', key, 'steps', steps .. ARGV[3])
return {r[1], '1'}
";

/// The verdict is 0: it did not happen; 1: it did; 2: amended.
///
/// `digest fence nonce verdict outcome replay tombstone resolution's-end kept kept-with-steps channel touch bare-bytes`
const RESOLVE: &str = r"
local state = r[2]
if not state then return answer() end
local fence, nonce = string.match(r[3], '^(%d+) (.*)$')
local resolved = redis.call('HGET', key, 'resolved')
if resolved and nonce == ARGV[3] then
  if ARGV[12] == '1' then redis.call('HSET', key, 'state', state) end
  return answer('', resolved)
end
local from
if ARGV[4] == '2' then
  from = state == 'completed' and now < tonumber(purge)
else
  from = state == 'unknown' or (state == 'in-flight' and now >= tonumber(lease))
end
if fence ~= ARGV[2] or not from then return answer('', resolved) end
local after
if ARGV[4] ~= '0' then
  after = 'completed'
  expires = now + ARGV[6]
  purge = text(expires + ARGV[7])
  redis.call('HDEL', key, 'steps')
  redis.call('PERSIST', key)
else
  after = 'released'
  expires = now + (redis.call('HSTRLEN', key, 'steps') > tonumber(ARGV[13]) and ARGV[10] or ARGV[9])
  purge = text(expires)
  redis.call('PERSIST', key)
end
local fields = {'state', after, 'token', fence_after(r[3]) .. ' ' .. ARGV[3], 'at',
  settle(text(expires), purge),
  'resolved', stamp .. ' ' .. fence .. ' ' .. state .. ' ' .. ARGV[8]}
if ARGV[4] ~= '0' then
  redis.call('HSET', key, 'outcome', ARGV[5], unpack(fields))
else
  redis.call('HSET', key, unpack(fields))
end
expire(purge)
tell(ARGV[11])
return {r[1], '1'}
";

/// `digest fence mark`. Marks the record as waited for, where that is wanted, that attempt is in flight and
/// the server takes writes. Says that it wrote where the mark is there.
const WATCH: &str = r"
local record = answer()
if ARGV[3] == '1' and r[2] == 'in-flight' and string.match(r[3], '^%d+') == ARGV[2]
  and (r[6] or type(redis.pcall('HSET', key, 'waited', '1')) == 'number') then
  record[2] = '1'
end
return record
";

/// `digest`
const GET: &str = r"
if not r[2] then return answer() end
local more = redis.call('HMGET', key, 'outcome', 'resolved', 'steps', 'label', 'note')
local all = answer(more[1], more[2], more[3])
all[11] = more[4]
all[12] = more[5]
return all
";

/// A script, and the digest that the server knows it by once it was loaded.
pub(super) struct Script {
    pub(super) code: String,
    pub(super) hash: String,
}

impl Script {
    fn of(parts: &[&str]) -> Self {
        let code = parts.concat();
        let hash = redis::Script::new(&code).get_hash().to_owned();
        Self { code, hash }
    }
}

/// All scripts.
pub(super) struct Scripts {
    pub(super) claim: Script,
    pub(super) renew: Script,
    pub(super) complete: Script,
    pub(super) keep_step: Script,
    pub(super) abandon: Script,
    pub(super) mark_unknown: Script,
    pub(super) resolve: Script,
    pub(super) watch: Script,
    pub(super) get: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            claim: Script::of(&[READ, TELL, CLAIM]),
            renew: Script::of(&[READ, RENEW]),
            complete: Script::of(&[READ, EXPIRE, TELL, COMPLETE]),
            keep_step: Script::of(&[READ, KEEP_STEP]),
            abandon: Script::of(&[READ, EXPIRE, TELL, ABANDON]),
            mark_unknown: Script::of(&[READ, TELL, MARK_UNKNOWN]),
            resolve: Script::of(&[READ, EXPIRE, TELL, RESOLVE]),
            watch: Script::of(&[READ, WATCH]),
            get: Script::of(&[READ, GET]),
        }
    }

    pub(super) fn all(&self) -> [&Script; 9] {
        [
            &self.claim,
            &self.renew,
            &self.complete,
            &self.keep_step,
            &self.abandon,
            &self.mark_unknown,
            &self.resolve,
            &self.watch,
            &self.get,
        ]
    }
}
