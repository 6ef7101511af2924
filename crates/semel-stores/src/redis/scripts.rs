//! The scripts. Redis runs a script alone, from its first command to its last, and replicates and logs what it
//! wrote as one transaction: that is what makes a step atomic.
//!
//! Each reads the record and the time, and gives one of two answers. Where it wrote: the time and the key, in
//! one string. Where it did not: a list of the time, the value as it is, and the key; what follows from that is
//! decided in Rust. The layout of a value is in `value.rs`; Lua counts from 1.
//!
//! Tokens are compared as bytes, so that no number of 64 bits is rounded. Arithmetic is done on µs since 1970,
//! which a Lua number holds exactly until the year 2255; what lies later is written as "never".
//!
//! In flight and unknown records have no TTL (R8): a `SET` takes away the one that a record had. Settled ones
//! have theirs rounded up to the next millisecond, and every step looks at the time itself.
//!
//! A server without memory left refuses a script's first write, and only that. So claims are refused with
//! nothing written. The steps of attempts that run go on: they begin again behind a write that needs no memory.

use super::error::Effect;

/// Reads the record and the time.
const READ: &str = r"
local key = KEYS[1]
local old = redis.call('GET', key)
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local function bytes(time)
  if time >= 9007199254740992 then return '\255\255\255\255\255\255\255\255' end
  local high = math.floor(time / 4294967296)
  return struct.pack('>I4I4', high, time - high * 4294967296)
end
local stamp = bytes(now)
local STATE, TOKEN, NONCE, LEASE, SETTLED, PURGE, HEAD = 40, 74, 82, 118, 126, 142, 149
local IN_FLIGHT, UNKNOWN, COMPLETED, RELEASED = '\1', '\2', '\3', '\4'
";

/// For steps that change a record.
const WRITE: &str = r"
-- Writes although the server is full.
local function insist(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    redis.call('PERSIST', key)
    redis.call(...)
  end
end
-- When Redis may remove the record, in ms.
local function removal(value)
  local high, low = struct.unpack('>I4I4', value, PURGE)
  if high < 2097152 then
    return string.format('%.0f', math.ceil((high * 4294967296 + low) / 1000))
  end
end
-- The same for a whole value. Before Redis 6.2 its TTL is a command of its own.
local function put(value)
  local at = removal(value)
  if not at then return insist('SET', key, value) end
  if redis.pcall('SET', key, value, 'PXAT', at).err then
    insist('SET', key, value)
    redis.call('PEXPIREAT', key, at)
  end
end
-- Tells waiters, where there are any: every subscriber gets every message, in a Cluster over all nodes. May be
-- forbidden to this user, which must not fail a step that has been done.
local function tell()
  if string.byte(old, 2) == 1 then
    redis.pcall('PUBLISH', string.sub(key, 1, -65) .. 'changed', string.sub(old, 8, 39))
  end
end
";

/// Claims an identity that has no record. `start nonce-and-attempt lease end touch`
const CLAIM: &str = r"
if not old then
  redis.call('SET', key,
    ARGV[1] .. stamp .. ARGV[2] .. stamp .. stamp .. bytes(now + ARGV[3]) .. ARGV[4])
  return stamp .. key
end
";

/// Otherwise says what is there. `touch` is 1 where replicas are waited for: what was completed, or claimed by
/// this claim before, is then written once more without a change, so that there is something to wait for.
const CLAIMED: &str = r"
if ARGV[5] == '1' and (string.sub(old, STATE, STATE) == COMPLETED
  or string.sub(old, NONCE, NONCE + 15) == string.sub(ARGV[2], 1, 16)) then
  local at = removal(old)
  if at then
    redis.call('PEXPIREAT', key, at)
  else
    insist('SETRANGE', key, 0, string.sub(old, 1, 1))
  end
end
return {stamp, old, key}
";

/// A frequent step of the attempt that holds the token.
///
/// `token renew lease`, `token keep step kept-bytes most-bytes`, `token complete replay tombstone outcome`,
/// `token release bare-bytes kept kept-with-steps`
const HELD: &str = r"
local state = old and string.sub(old, TOKEN, TOKEN + 23) == ARGV[1] and string.sub(old, STATE, STATE)
local what = ARGV[2]
if state ~= IN_FLIGHT and (state ~= UNKNOWN or what == 'renew') then return {stamp, old, key} end
if what == 'renew' then
  local high, low = struct.unpack('>I4I4', old, LEASE)
  local till = now + ARGV[3]
  if till > high * 4294967296 + low then insist('SETRANGE', key, LEASE - 1, bytes(till)) end
  return stamp .. key
end
-- Nothing is behind the finished steps: there is no outcome yet.
local before = struct.unpack('>I4', old, 3)
local kept = #old - before - 4
if what == 'keep' then
  local all = kept + #ARGV[3]
  if kept ~= tonumber(ARGV[4]) or all > tonumber(ARGV[5]) then return {stamp, old, key} end
  insist('SET', key,
    string.sub(old, 1, before) .. struct.pack('>I4', all) .. string.sub(old, before + 5) .. ARGV[3])
  return stamp .. key
end
local after, times, steps, outcome
if what == 'complete' then
  local expires = now + ARGV[3]
  after, times = COMPLETED, bytes(expires) .. bytes(expires + ARGV[4])
  steps, outcome = '\0\0\0\0', ARGV[5]
else
  local till = bytes(now + (kept > tonumber(ARGV[3]) and ARGV[5] or ARGV[4]))
  after, times = RELEASED, till .. till
  steps, outcome = string.sub(old, before + 1), ''
end
put(string.sub(old, 1, STATE - 1) .. after .. string.sub(old, STATE + 1, SETTLED - 1)
  .. stamp .. times .. string.sub(old, HEAD + 1, before) .. steps .. outcome)
tell()
return stamp .. key
";

/// Replaces a record, if it is as it was read: what is rare. `compared length value insist`
///
/// `compared` is empty where there was none.
const SWAP: &str = r"
if ARGV[1] == '' then
  if old then return {stamp, old, key} end
elseif not old or #old ~= tonumber(ARGV[2]) or string.sub(old, 3, HEAD) ~= ARGV[1] then
  return {stamp, old, key}
end
if ARGV[4] == '1' then put(ARGV[3]) else redis.call('SET', key, ARGV[3]) end
if old then tell() end
return stamp .. key
";

/// Reads the record; for a waiter, its beginning. `[fence mark]`
///
/// With `mark` 1 it marks the record as waited for, if that attempt is in flight and the server takes writes.
const LOOK: &str = r"
if old and ARGV[1] then
  if ARGV[2] == '1' and string.sub(old, STATE, STATE) == IN_FLIGHT
    and string.sub(old, TOKEN, NONCE - 1) == ARGV[1] and string.byte(old, 2) ~= 1
    and type(redis.pcall('SETRANGE', key, 1, '\1')) == 'number' then
    old = string.sub(old, 1, 1) .. '\1' .. string.sub(old, 3)
  end
  old = string.sub(old, 1, HEAD)
end
return {stamp, old, key}
";

/// A script, and the digest that the server knows it by once it was loaded.
pub(super) struct Script {
    pub(super) code: String,
    pub(super) hash: String,
    pub(super) effect: Effect,
}

impl Script {
    fn of(effect: Effect, parts: &[&str]) -> Self {
        let code = parts.concat();
        let hash = redis::Script::new(&code).get_hash().to_owned();
        Self { code, hash, effect }
    }
}

/// All scripts.
pub(super) struct Scripts {
    pub(super) claim: Script,
    pub(super) held: Script,
    pub(super) swap: Script,
    pub(super) look: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            claim: Script::of(Effect::Write, &[READ, CLAIM, WRITE, CLAIMED]),
            held: Script::of(Effect::Write, &[READ, WRITE, HELD]),
            swap: Script::of(Effect::Write, &[READ, WRITE, SWAP]),
            // The mark that it may set is no change of a record.
            look: Script::of(Effect::Read, &[READ, LOOK]),
        }
    }

    pub(super) fn all(&self) -> [&Script; 4] {
        [&self.claim, &self.held, &self.swap, &self.look]
    }
}
