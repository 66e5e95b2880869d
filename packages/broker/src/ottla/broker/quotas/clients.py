"""The quotas of clients: which one applies to a user and client id, and what each has used. Pure.

Names are as Kafka's znodes have them: URL-encoded, and `<default>` for every name without a quota of its own.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote
from weakref import WeakValueDictionary

from ottla.broker.metrics import MetricName
from ottla.broker.quotas import Quota
from ottla.broker.quotas.connections import DEFAULT, AddressRates, LookUp
from ottla.broker.quotas.rates import QuotaBucket, SampledRate, SessionQuotas, TokenBucket
from ottla.broker.runtime.threads import look_up
from ottla.client.config_definition import MAX_INT
from ottla.protocol.errors import ThrottlingQuotaExceeded

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig

_log = logging.getLogger(__name__)

QUOTA_KEYS: Final[Mapping[str, Quota]] = {
    "producer_byte_rate": Quota.PRODUCE,
    "consumer_byte_rate": Quota.FETCH,
    "request_percentage": Quota.REQUEST,
    "controller_mutation_rate": Quota.CONTROLLER_MUTATION,
}
"""The keys of Kafka's znodes of users and clients."""
IDLE_MS: Final = 3_600_000
"""How long the rates of a client are remembered after its last request, as in Kafka."""
FORGET_EVERY_MS: Final = 300_000
MOST_REMEMBERED: Final = 10_000
"""Clients with a quota whose rates are remembered while they are not connected."""
MOST_SHOWN: Final = 1_000
"""Users and client ids that have metrics of their own, for each quota."""

_METRICS: Final = {
    Quota.PRODUCE: ("Produce", "byte-rate"),
    Quota.FETCH: ("Fetch", "byte-rate"),
    Quota.REQUEST: ("Request", "request-time"),
    Quota.CONTROLLER_MUTATION: ("ControllerMutation", "mutation-rate"),
}


def _limit(entity_path: str, text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if 0 < value < math.inf:
        return value
    _log.error("quota ignored: a positive number is expected", extra={"entity": entity_path, "value": text})
    return None


class QuotaEntity(NamedTuple):
    """The user and client id that a quota is set for; None where it is for all of them."""

    user: str | None = None
    client_id: str | None = None


def encoded_name(name: str) -> str:
    """Encode a user or client id as Kafka's znodes have it; every name has an encoding."""
    return quote(name, safe="~", errors="surrogatepass")


def candidates(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, QuotaEntity]]:
    """Yield the entities whose quota may apply, the first that has one decides, and those that share it.

    The order is Kafka's. A client without an id has only its user's quota.
    """
    both, of_user = QuotaEntity(user, client_id), QuotaEntity(user)
    if client_id:
        yield both, both
        yield QuotaEntity(user, DEFAULT), both
    yield of_user, of_user
    if client_id:
        yield QuotaEntity(DEFAULT, client_id), both
        yield QuotaEntity(DEFAULT, DEFAULT), both
    yield QuotaEntity(DEFAULT), of_user
    if client_id:
        yield QuotaEntity(None, client_id), QuotaEntity(None, client_id)
        yield QuotaEntity(None, DEFAULT), QuotaEntity(None, client_id)


class ControllerMutations:
    """The controller mutations of one request, counted against its client's tokens (KIP-599).

    A client of a version that knows the error is refused what it has no tokens for; an older one is served,
    and throttled afterwards.
    """

    def __init__(self, quotas: SessionQuotas, *, is_strict: bool) -> None:
        self._bucket = quotas.mutation
        self._now_ms = quotas.now_ms
        self._is_strict = is_strict
        self._until_ms = 0.0

    def record(self, partitions: int) -> None:
        """Count partitions before they are created or deleted.

        Raises ThrottlingQuotaExceeded, and counts nothing, where the client has to wait.
        """
        bucket = self._bucket
        if bucket is None:
            return
        now_ms = self._now_ms()
        excess_ms = bucket.excess_ms(now_ms)
        if self._is_strict and excess_ms > 0:
            self._throttle(bucket, excess_ms, now_ms)
            raise ThrottlingQuotaExceeded("The throttling quota has been exceeded.")
        excess_ms = bucket.record(partitions, now_ms)
        if not self._is_strict and excess_ms > 0:
            self._throttle(bucket, excess_ms, now_ms)

    @classmethod
    def of(cls, quotas: SessionQuotas, version: int, first_strict: int) -> ControllerMutations:
        """Make the count of a request; clients know the error from version `first_strict` on."""
        return cls(quotas, is_strict=version >= first_strict)

    def _throttle(self, bucket: TokenBucket, excess_ms: float, now_ms: float) -> None:
        if self._until_ms < now_ms:
            bucket.throttle_times.note(excess_ms, now_ms)
        self._until_ms = now_ms + excess_ms

    @property
    def throttle_time_ms(self) -> int:
        """The time that the client has to wait from now on."""
        return max(0, min(MAX_INT, round(self._until_ms - self._now_ms())))


class ClientQuotas:
    """The quotas of all clients of a broker, with what each has used.

    A session looks its quotas up once, and again when they have become stale. Rates live as long as a session
    uses them, and an idle hour longer: a client that connects again goes on where it was.
    """

    def __init__(
        self, config: BrokerConfig, monotonic_ms: Callable[[], float], look_up: LookUp = look_up
    ) -> None:
        """See `AddressRates` for `look_up`."""
        self._window = config.quota_window_size_seconds * 1000.0, config.quota_window_num
        self._mutation_window = (
            config.controller_quota_window_size_seconds * 1000.0,
            config.controller_quota_window_num,
        )
        self.now_ms = monotonic_ms
        """The clock of all quotas."""
        self.exempt = SampledRate(*self._window)
        """The time of brokers' requests, in percent of the event loop, while any client's time is limited."""
        self.address_rates = AddressRates(config, monotonic_ms, look_up)
        """The quotas of addresses."""
        self._limits: dict[Quota, dict[QuotaEntity, float]] = {quota: {} for quota in QUOTA_KEYS.values()}
        self._unlimited = SessionQuotas(monotonic_ms)
        self._buckets: WeakValueDictionary[tuple[Quota, QuotaEntity], QuotaBucket | TokenBucket] = (
            WeakValueDictionary()
        )
        self._resolved: WeakValueDictionary[tuple[str, str], SessionQuotas] = WeakValueDictionary()
        self._remembered: OrderedDict[tuple[str, str], SessionQuotas] = OrderedDict()

    # ---- limits

    def entity_changed(self, entity_path: str, settings: Mapping[str, str]) -> None:
        """Take the settings of a user, a client id, or a client id of a user; other keys are of no concern.

        Raises nothing: a value that no broker of ours would have accepted is named in the log, and ignored.
        """
        match entity_path.split("/"):
            case ["users", user]:
                entity = QuotaEntity(user)
            case ["users", user, "clients", client_id]:
                entity = QuotaEntity(user, client_id)
            case ["clients", client_id]:
                entity = QuotaEntity(None, client_id)
            case _:
                return
        limits = {
            quota: value
            for key, quota in QUOTA_KEYS.items()
            if key in settings and (value := _limit(entity_path, settings[key]))
        }
        self.limit(entity, limits)

    def limit(self, entity: QuotaEntity, quotas: Mapping[Quota, float]) -> None:
        """Replace the quotas of an entity. Every session looks its quotas up again."""
        present = {quota: limits[entity] for quota, limits in self._limits.items() if entity in limits}
        if quotas == present:
            return
        for quota, limits in self._limits.items():
            limits.pop(entity, None)
            if quota in quotas:
                limits[entity] = quotas[quota]
        self._unlimited.is_stale = True
        self._unlimited = SessionQuotas(self.now_ms)
        for resolved in self._resolved.values():
            resolved.is_stale = True
        self._resolved.clear()

    @property
    def measures_time(self) -> bool:
        """Whether any client's request time is limited."""
        return bool(self._limits[Quota.REQUEST])

    @property
    def entities(self) -> set[QuotaEntity]:
        """The entities that have a quota."""
        return {entity for limits in self._limits.values() for entity in limits}

    # ---- sessions

    def of(self, user: str, client_id: str | None) -> SessionQuotas:
        """Return the quotas of a user with a client id."""
        if not any(self._limits.values()):
            return self._unlimited
        key = encoded_name(user), encoded_name(client_id or "")
        resolved = self._resolved.get(key)
        if resolved is None:
            resolved = self._resolve(*key)
            if not resolved.is_limited:
                return self._unlimited
            self._resolved[key] = resolved
        self._remember(key, resolved)
        return resolved

    def _resolve(self, user: str, client_id: str) -> SessionQuotas:
        buckets: dict[Quota, QuotaBucket | TokenBucket | None] = {
            quota: self._bucket(quota, user, client_id) for quota in self._limits
        }
        produce, fetch, request = (
            bucket if isinstance(bucket := buckets[quota], QuotaBucket) else None
            for quota in (Quota.PRODUCE, Quota.FETCH, Quota.REQUEST)
        )
        mutation = buckets[Quota.CONTROLLER_MUTATION]
        return SessionQuotas(
            self.now_ms, produce, fetch, request, mutation if isinstance(mutation, TokenBucket) else None
        )

    def _bucket(self, quota: Quota, user: str, client_id: str) -> QuotaBucket | TokenBucket | None:
        limits = self._limits[quota]
        if not limits:
            return None
        for entity, sharers in candidates(user, client_id):
            if entity in limits:
                return self._bucket_of(quota, sharers, limits[entity])
        return None

    def _bucket_of(self, quota: Quota, sharers: QuotaEntity, bound: float) -> QuotaBucket | TokenBucket:
        bucket = self._buckets.get((quota, sharers))
        if bucket is None:
            bucket = self._buckets[quota, sharers] = self._new_bucket(quota, bound)
        bucket.bound = bound
        return bucket

    def _new_bucket(self, quota: Quota, bound: float) -> QuotaBucket | TokenBucket:
        if quota is Quota.CONTROLLER_MUTATION:
            return TokenBucket(bound, *self._mutation_window, self.now_ms())
        if quota is Quota.REQUEST:
            return QuotaBucket(bound, *self._window, longest_ms=self._window[0])
        return QuotaBucket(bound, *self._window)

    # ---- memory

    def _remember(self, key: tuple[str, str], resolved: SessionQuotas) -> None:
        self._remembered[key] = resolved
        self._remembered.move_to_end(key)
        if len(self._remembered) > MOST_REMEMBERED:
            self._remembered.popitem(last=False)

    def forget_idle(self) -> None:
        """Forget the clients whose last request is an hour ago; call it every few minutes."""
        before_ms = self.now_ms() - IDLE_MS
        for key, quotas in list(self._remembered.items()):
            buckets = (quotas.produce, quotas.fetch, quotas.request, quotas.mutation)
            if all(bucket is None or bucket.rate.last_ms <= before_ms for bucket in buckets):
                del self._remembered[key]

    def __len__(self) -> int:
        """The users and client ids whose rates are remembered."""
        return len(self._remembered)

    # ---- metrics

    def samples(self) -> Iterator[tuple[MetricName, float] | None]:
        """Yield rate and throttle time of each quota's users and client ids, under Kafka's names."""
        now_ms, shown = self.now_ms(), dict.fromkeys(_METRICS, 0)
        if self.measures_time:
            yield MetricName("kafka.server", "Request", "exempt-request-time", ()), self.exempt.per_s(now_ms)
        for (quota, sharers), bucket in list(self._buckets.items()):
            if shown[quota] >= MOST_SHOWN:
                continue
            shown[quota] += 1
            kind, rate = _METRICS[quota]
            tags = (("client-id", sharers.client_id or ""), ("user", sharers.user or ""))
            yield MetricName("kafka.server", kind, rate, tags), bucket.rate.per_s(now_ms)
            throttled_ms = bucket.throttle_times.average_ms(now_ms)
            yield MetricName("kafka.server", kind, "throttle-time", tags), throttled_ms
            if isinstance(bucket, TokenBucket):
                yield MetricName("kafka.server", kind, "tokens", tags), bucket.tokens(now_ms)
            yield None
