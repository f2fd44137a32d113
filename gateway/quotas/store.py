"""The store of quotas: moves leases of budgets between this gateway and Valkey or Redis."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import structlog
from prometheus_client.core import Metric

from gateway.concurrency.background import end_tasks, start_background
from gateway.concurrency.timeouts import is_set_within
from gateway.config.permissions import QuotaStoreConfig
from gateway.quotas.budget_queue import Key, stored_key
from gateway.quotas.pools import (
    LEASE_S,
    SILENCE_S,
    LeaseReply,
    LeaseRequest,
    PoolLeases,
)
from gateway.telemetry import names
from gateway.telemetry.families import gauge_family
from gateway.transports.net.look_up import look_up

log = structlog.get_logger(__name__)

DIRECTORY: Final = "directory:"
"""What the URL of a file begins with; no configuration has one."""

_MOST_AT_ONCE: Final = 16
"""More questions to a file take more than a millisecond, and are asked on a thread."""
_PLAIN: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in "%|")
"""What stands in a key of the store as it is."""

_TICK_S: Final = 0.02
_RETURN_S: Final = 0.1
_RETRY_S: Final = 0.5
_FIRST_S: Final = 1.0
_LAST_S: Final = 0.5
_PRESENCE_S: Final = 2.0

# One script, so that each lease is atomic. Windows follow the clock of the store. A gateway sends
# what it was granted so far (`mine`), which counts where the store or a reply was lost.
# A late request is older than the last one, and changes nothing. What a gateway holds and has not
# spent (`u:`) and its share (`s:`) are taken back once it is silent (`t:`), as one is that was
# killed; `holders` lists those. One that was only cut off has let its lease lapse by then, and
# tells what it spent. Where no gateway asked for a while (`heard`), none was silent: the store was.
#
# Each gateway has a share of the rest of a window, for the time without the store. What the others
# may spend without it is not granted, so that all of them never spend more than there is. A share
# counts as the gateway last told it, or as the store last told the gateway, whichever is more.
# Where all have more than there is, `left` is below 0, and who asks next gives its part back.
SCRIPT: Final = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local id = ARGV[1]
local ends, mine, returned = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local need, want, amount = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local rate, burst, whole = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10] == '1'
local known, share, alone = ARGV[11] == '1', tonumber(ARGV[12]), ARGV[13] == '1'
local spent, lease, silence = tonumber(ARGV[15]), tonumber(ARGV[16]), tonumber(ARGV[17])
redis.call('ZADD', KEYS[2], now, id)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - 10)
redis.call('EXPIRE', KEYS[2], 60)
local replicas = redis.call('ZCARD', KEYS[2])
local function get(name) return tonumber(redis.call('HGET', KEYS[1], name) or '0') end
local function set(name, value) redis.call('HSET', KEYS[1], name, string.format('%.6f', value)) end
local function cut(value)
  if value < 0 then return 0 end
  return whole and math.floor(value + 0.000001) or value
end
local grant, left, wait, short, part = 0, 0, 0, 0, 0
if rate > 0 then
  local tokens = redis.call('HGET', KEYS[1], 'tokens')
  if tokens and not alone then
    tokens = math.min(burst, tonumber(tokens) + (now - get('at')) * rate)
  else
    tokens = (known or alone) and 0 or burst
  end
  tokens = math.min(burst, tokens + returned)
  grant = cut(math.min(want, tokens))
  if grant < need then grant = cut(math.min(need, tokens)) end
  left = tokens - grant
  set('tokens', left)
  set('at', now)
  redis.call('EXPIRE', KEYS[1], math.ceil(2 * burst / rate) + 60)
  if grant < need then wait = math.max(0, (math.min(need, whole and 1 or need) - left) / rate) end
elseif now >= ends then
  left = amount
elseif tonumber(ARGV[14]) <= get('n:' .. id) then
  left = math.max(0, amount - get('granted'))
else
  redis.call('HSET', KEYS[1], 'n:' .. id, ARGV[14])
  if mine > 0 and redis.call('HEXISTS', KEYS[1], 'granted') == 0 then set('lost', now) end
  local lost = now - get('lost') < 1.2
  if lost then want, need = 0, 0 end
  if now - get('asked') > silence then set('heard', now) end
  set('asked', now)
  local heard, holders, promised = get('heard'), {}, 0
  for other in string.gmatch(redis.call('HGET', KEYS[1], 'holders') or '', '[^,]+') do
    if other ~= id and now - math.max(get('t:' .. other), heard) > lease then
      local unspent = get('u:' .. other)
      set('granted', get('granted') - unspent)
      set('r:' .. other, get('r:' .. other) - unspent)
      redis.call('HDEL', KEYS[1], 'u:' .. other, 't:' .. other, 's:' .. other)
    elseif other ~= id then
      holders[#holders + 1] = other
      promised = promised + get('s:' .. other)
    end
  end
  local own = mine - returned
  local granted = get('granted') + own - get('r:' .. id)
  grant = cut(math.min(want, amount - granted - promised))
  granted, own = granted + grant, own + grant
  left = amount - granted
  if left > -0.001 then left = math.max(0, left) end
  if share >= 0 then
    part = cut(math.min(left / replicas, left - promised))
    if lost then part = math.min(part, share) end
  end
  set('granted', granted)
  set('r:' .. id, own)
  set('u:' .. id, math.max(0, own - spent))
  set('s:' .. id, math.max(0, part, share))
  if own > spent or part > 0 or share > 0 then
    holders[#holders + 1] = id
    set('t:' .. id, now)
  else
    redis.call('HDEL', KEYS[1], 'u:' .. id, 't:' .. id, 's:' .. id)
  end
  redis.call('HSET', KEYS[1], 'holders', table.concat(holders, ','))
  if grant < need then
    redis.call('HSETNX', KEYS[1], 'since', now)
    set('lacking', now)
    redis.call('HSET', KEYS[1], 'lacks', id)
    wait = (left > 0 or now - get('since') < 3) and 0.05 or ends - now
  elseif left > 0 then
    redis.call('HDEL', KEYS[1], 'since')
  end
  if now - get('lacking') < 1 and redis.call('HGET', KEYS[1], 'lacks') ~= id then short = 1 end
  redis.call('EXPIREAT', KEYS[1], math.ceil(ends) + 3600)
end
local time_text = string.format('%.6f', now)
return {tostring(grant), tostring(left), time_text, replicas, tostring(wait), short, tostring(part)}
"""


# Counts this gateway among those that ask, where it has no question.
PRESENCE: Final = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 10)
redis.call('EXPIRE', KEYS[1], 60)
return {string.format('%.6f', now), redis.call('ZCARD', KEYS[1])}
"""


class QuotaStore:
    """Keeps the pools of a gateway filled from the store.

    Args:
        config: Where the store is.
        leases: The pools.
        name: The name of this gateway among all that use the store.
    """

    def __init__(self, config: QuotaStoreConfig, leases: PoolLeases, name: str) -> None:
        self._config = self._next = config
        self._leases = leases
        self._name = name
        self._numbers = count(int(time.monotonic() * 1e6))  # above those of an earlier object
        self._client = client_of(config)
        self._wanted = asyncio.Event()
        self._answered = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._returned_at = self._asked_at = 0.0

    async def start(self) -> None:
        """Connect to the store, for a second at most, and begin to ask it.

        The first connection takes longer than a question, and until the store has told how many
        gateways there are, each may spend the budget of all.
        """
        await self._try((), connects=True)
        self._task = start_background(self._run(), "leases of quotas")

    def change(self, config: QuotaStoreConfig) -> None:
        """Use another store, or the same one in another way, from the next question on.

        A store that knows nothing of this gateway gets its counts, as one that lost its data.
        """
        self._next = config

    async def ask(self, needs: Mapping[Key, float]) -> None:
        """Ask for what calls need, and wait for the answer: twice `timeout` at most.

        The question before it takes `timeout` at most, and so does this one. A store that does not
        answer is away: nobody waits for it.
        """
        for key, amount in needs.items():
            self._leases.need(key, amount)
        if not self._leases.is_up or not self._leases.has_questions:
            return
        answered = self._answered
        self._wanted.set()
        await is_set_within(answered, 2 * self._config.timeout + _TICK_S)

    async def stop(self) -> None:
        """Return all leases, and close the connections; idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        await end_tasks(task)
        if self._leases.is_up:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_LAST_S):
                    if returns := self._leases.returns(everything=True):
                        await self._exchange(returns)
                    await self._client.zrem(self._replicas_key, self._name)
        with contextlib.suppress(Exception):
            await self._client.aclose()

    def collect(self) -> Iterable[Metric]:
        """Return whether the store replies."""
        family = gauge_family(names.QUOTA_STORE_UP)
        family.add_metric((), float(self._leases.is_up))
        yield family

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        retry_at = 0.0
        while self._task is not None:  # the client may turn a cancellation into its own error
            await is_set_within(self._wanted, _TICK_S)
            self._wanted.clear()
            if self._next != self._config:
                retry_at = 0.0
                await self._move(self._next)
            now = loop.time()
            if not self._leases.is_up:
                if now < retry_at:
                    continue
                self._leases.ask_again()
            questions = self._questions(now)
            if not questions and self._leases.is_up and now - self._asked_at < _PRESENCE_S:
                continue
            answered, self._answered = self._answered, asyncio.Event()
            if not await self._try(questions):
                retry_at = loop.time() + _RETRY_S
            answered.set()

    async def _move(self, config: QuotaStoreConfig) -> None:
        """Ask another store from now on."""
        client, self._client = self._client, client_of(config)
        if config.replicas != self._config.replicas:
            self._leases.replicas = config.replicas
        self._config = config
        self._leases.ask_again()
        log.info("store of quotas changed")
        with contextlib.suppress(Exception):  # the old one may be away
            await client.aclose()

    def _questions(self, now: float) -> list[LeaseRequest]:
        questions: list[LeaseRequest] = []
        self._leases.lapse()
        if now - self._returned_at >= _RETURN_S:
            self._returned_at = now
            self._leases.refresh()
            questions = self._leases.returns()
        keys = {question.key for question in questions}
        return questions + [each for each in self._leases.questions() if each.key not in keys]

    async def _try(self, questions: Sequence[LeaseRequest], *, connects: bool = False) -> bool:
        """Ask the store; return whether it replied.

        Args:
            questions: What to ask.
            connects: Whether a connection is made first, which takes longer than a question.
        """
        asked_at = self._leases.monotonic()
        try:
            if connects or not self._leases.is_up:  # no call waits for a store that is away
                async with asyncio.timeout(max(_FIRST_S, self._config.timeout)):
                    await self._exchange(())
            if questions:
                async with asyncio.timeout(self._config.timeout):
                    await self._exchange(questions)
        except Exception as error:  # noqa: BLE001  # whatever it is, the store is away
            self._leases.fail(questions)
            if self._leases.is_up:
                log.warning("store of quotas away", reason=str(error) or type(error).__name__)
            self._leases.go_on_alone()
            return False
        self._leases.renew(asked_at)
        if not self._leases.is_up:
            self._leases.come_back()
            log.info("store of quotas back")
        return True

    async def _exchange(self, questions: Sequence[LeaseRequest]) -> None:
        self._asked_at = asyncio.get_running_loop().time()
        if self._config.url.startswith(DIRECTORY):
            answers = partial(self._client.answers, self._name, questions)
            is_long = len(questions) > _MOST_AT_ONCE
            replies = await asyncio.to_thread(answers) if is_long else answers()
            for question, answer in zip(questions, replies, strict=True):
                self._leases.receive(question, answer)
            return
        if not questions:
            utc, replicas = await self._client.eval(PRESENCE, 1, self._replicas_key, self._name)
            self._leases.hear(float(utc), int(replicas))
            return
        pipeline = self._client.pipeline(transaction=False)
        for question in questions:
            pipeline.eval(SCRIPT, 2, *self._arguments(question))
        for question, reply in zip(questions, await pipeline.execute(), strict=True):
            granted, left, utc, replicas, wait_s, is_short, share = reply
            self._leases.receive(
                question,
                LeaseReply(
                    float(granted),
                    float(left),
                    float(utc),
                    int(replicas),
                    float(wait_s),
                    bool(int(is_short)),
                    float(share),
                ),
            )

    @property
    def _replicas_key(self) -> str:
        return f"{self._config.prefix}:replicas"

    def _arguments(self, question: LeaseRequest) -> list[Any]:
        limit = question.limit
        return [
            f"{self._config.prefix}:quota:{stored_name(question.key)}:{question.ends:.0f}",
            self._replicas_key,
            self._name,
            repr(question.ends),
            repr(question.mine),
            repr(question.returned),
            repr(question.need),
            repr(max(question.need, question.want)),
            repr(limit.amount),
            repr(limit.rate if limit.is_rate else 0.0),
            repr(limit.capacity),
            "1" if limit.unit == "calls" else "0",
            "1" if question.is_known else "0",
            repr(question.share),
            "1" if question.was_alone else "0",
            str(next(self._numbers)),
            repr(question.spent),
            repr(LEASE_S),
            repr(SILENCE_S),
        ]


def stored_name(key: Key) -> str:
    """Return the name of a budget in the store, which no budget of another quota or client has."""
    return "|".join(quote(part, safe=_PLAIN, errors="replace") for part in stored_key(key))


def client_of(config: QuotaStoreConfig) -> Any:
    """Return a client of the store, which connects at the first request.

    Raises:
        ValueError: The URL is wrong; the text may hold a part of a password.
        OSError: The file of gateways that hand over cannot be used.
    """
    if config.url.startswith(DIRECTORY):
        from gateway.quotas.directory import QuotaDirectory  # noqa: PLC0415  # SQLite: 5 ms

        return QuotaDirectory(Path(config.url.removeprefix(DIRECTORY)))
    import redis.asyncio  # noqa: PLC0415  # an extra

    timeout_s = max(_FIRST_S, config.timeout)  # the store has timeouts of its own
    client = redis.asyncio.Redis.from_url(
        config.url,
        decode_responses=True,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=None,
    )
    pool = client.connection_pool
    if issubclass(pool.connection_class, redis.asyncio.Connection):  # over TCP
        pool.connection_class = _by_address(pool.connection_class)
    return client


def _by_address(base: Any) -> Any:
    """Return connections of the class *base* whose host is looked up as those of upstreams are.

    The loop's own look-up would keep one of its threads while the name server is silent.
    """

    class ByAddress(base):  # type: ignore[misc]  # a class of a package without types
        address = ""

        def _connection_arguments(self) -> dict[str, Any]:
            found = {**super()._connection_arguments(), "host": self.address}
            return {**found, "server_hostname": self.host} if "ssl" in found else found

        async def _connect(self) -> None:
            *others, last = await look_up(self.host)
            for self.address in others:
                with contextlib.suppress(OSError):
                    await super()._connect()
                    return
            self.address = last
            await super()._connect()

    return ByAddress
