"""The clients that push metrics: which subscription each has, when it may ask and push, and what it measured.

Pure: the time is an argument. Kafka's `ClientMetricsManager` has the same rules and errors.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from ottla.broker.metrics.registry import MetricName
from ottla.broker.telemetry.subscriptions import ALL_METRICS, DEFAULT_INTERVAL_MS
from ottla.protocol.errors import (
    ErrorCode,
    InvalidRequest,
    KafkaError,
    TelemetryTooLarge,
    ThrottlingQuotaExceeded,
    UnknownSubscriptionId,
    UnsupportedCompressionType,
)
from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.broker.telemetry.payloads import Measured
    from ottla.broker.telemetry.subscriptions import Subscription

ZSTD, LZ4, GZIP, SNAPPY = 4, 3, 1, 2
ACCEPTED: Final = (ZSTD, LZ4, GZIP, SNAPPY)
"""The compressions that clients are offered, the preferred one first; they may send none, too."""
LABELS: Final = (
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
)
"""The facts of a client that its samples are labelled with."""
RESERVED: Final = frozenset({UUID(int=0), UUID(int=1)})
MOST_CLIENTS: Final = 16_384
MOST_OF_CLIENT: Final = 5_000
"""Values of one client; of more the ones pushed least recently go: names may be new with every push."""
_STEP: Final = 500
"""Values that are noted at once: about a millisecond."""
MOST_SAMPLES: Final = 200_000
"""Values of all clients together; further ones are dropped until others go."""
MOST_CHARACTERS: Final = 64 << 20
"""Characters of the names and labels of all values: 335 of each, where 16 labels of one may have 6,400."""
EXPIRE_MS: Final = 60_000
_NEVER: Final = float("-inf")
_FORGIVEN: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
"""Errors after which a client may ask at once for its subscription again."""


class Connected(Protocol):
    """The connection of a client."""

    @property
    def is_gone(self) -> bool:
        """Whether it is closed."""
        ...


@frozen
class Push:
    """The fields of a push beside its metrics."""

    subscription_id: int
    terminating: bool
    compression_type: int
    size: int


class Client:
    """One client instance."""

    __slots__ = (
        "characters",
        "connection",
        "facts",
        "id",
        "interval_ms",
        "last_error",
        "last_get_ms",
        "last_push_ms",
        "metrics",
        "seen_ms",
        "subscription_id",
        "terminating",
        "values",
        "version",
    )

    def __init__(self, id: UUID, facts: Mapping[str, str | None], connection: Connected) -> None:  # noqa: A002
        self.id = id
        self.facts = facts
        self.connection = connection
        self.metrics: tuple[str, ...] = ()
        self.interval_ms = DEFAULT_INTERVAL_MS
        self.subscription_id = 0
        self.version = -1
        self.last_get_ms = self.last_push_ms = self.seen_ms = _NEVER
        self.terminating = False
        self.last_error = ErrorCode.NONE
        self.values: dict[MetricName, float] = {}
        """Those that were pushed last stand last."""
        self.characters = 0
        """Those of the names of the values."""

    def subscribe(self, subscriptions: Iterable[Subscription], version: int) -> None:
        """Take the subscriptions that match this client, as those of a client that has not asked yet."""
        matching = [subscription for subscription in subscriptions if subscription.matches(self.facts)]
        metrics = frozenset().union(*(subscription.metrics for subscription in matching))
        self.metrics = (ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics))
        self.interval_ms = min(
            [DEFAULT_INTERVAL_MS, *(subscription.interval_ms for subscription in matching)]
        )
        text = f"{','.join(self.metrics)} {self.interval_ms} {self.id}"
        self.subscription_id = zlib.crc32(text.encode()) - 2**31
        self.version = version
        self.last_get_ms = self.last_push_ms = _NEVER
        self.terminating, self.last_error = False, ErrorCode.NONE

    def may_get(self, now_ms: float) -> bool:
        """Return whether the client may ask for its subscription now, and note that it has."""
        if now_ms - max(self.last_get_ms, self.last_push_ms) < self.interval_ms:
            return False
        self.last_get_ms = now_ms
        return True

    def may_push(self, now_ms: float) -> bool:
        """Return whether the client may push now, and note that it has.

        The first push after a question comes at any time: clients draw it between half an interval and one
        and a half.
        """
        is_due = self.last_get_ms > self.last_push_ms or now_ms - self.last_push_ms >= self.interval_ms
        if is_due:
            self.last_push_ms = now_ms
        return is_due

    def is_over(self, now_ms: float) -> bool:
        """Return whether the client has left, or has not been heard of for long."""
        return self.connection.is_gone or now_ms - self.seen_ms >= max(EXPIRE_MS, 3 * self.interval_ms)


class Clients:
    """The clients that asked this broker for subscriptions, or pushed to it; the least recent go first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.subscriptions: Mapping[str, Subscription] = {}
        self.version = 0
        self.dropped_samples = 0
        self._clients: OrderedDict[UUID, Client] = OrderedDict()
        self._samples = 0
        self._characters = 0

    def __len__(self) -> int:
        return len(self._clients)

    def get(
        self, client_id: UUID, facts: Mapping[str, str | None], connection: Connected, now_ms: float
    ) -> Client:
        """Answer a question for the subscription. Raises ThrottlingQuotaExceeded."""
        client = self._client(client_id, facts, connection, now_ms)
        if not client.may_get(now_ms) and client.last_error not in _FORGIVEN:
            raise ThrottlingQuotaExceeded(f"client {client_id} asks before the next push interval")
        client.last_error = ErrorCode.NONE
        return client

    def push(
        self,
        client_id: UUID,
        facts: Mapping[str, str | None],
        connection: Connected,
        push: Push,
        now_ms: float,
    ) -> Client:
        """Check a push. Raises the error that the client gets."""
        if client_id in RESERVED:
            raise InvalidRequest(f"{client_id} is no id of a client instance")
        client = self._client(client_id, facts, connection, now_ms)
        try:
            self._check(client_id, client, push, now_ms)
        except KafkaError as error:
            client.last_error = error.code
            raise
        finally:
            client.terminating = push.terminating
        client.last_error = ErrorCode.NONE
        return client

    def _check(self, client_id: UUID, client: Client, push: Push, now_ms: float) -> None:
        if client.terminating:
            raise InvalidRequest(f"client {client_id} said before that it terminates")
        if not client.may_push(now_ms) and not push.terminating:
            raise ThrottlingQuotaExceeded(f"client {client_id} pushes before the next push interval")
        if push.subscription_id != client.subscription_id:
            raise UnknownSubscriptionId
        if push.compression_type not in (0, *ACCEPTED):
            raise UnsupportedCompressionType(f"no compression type {push.compression_type}")
        if push.size > self.max_bytes:
            raise TelemetryTooLarge(f"{push.size} bytes, more than telemetry.max.bytes ({self.max_bytes})")

    def _client(
        self, client_id: UUID, facts: Mapping[str, str | None], connection: Connected, now_ms: float
    ) -> Client:
        client = self._clients.get(client_id)
        if client is not None and client.is_over(now_ms):
            self._drop(client_id)
            client = None
        if client is None:
            self._make_room(now_ms)
            client = self._clients[client_id] = Client(client_id, facts, connection)
        self._clients.move_to_end(client_id)
        if client.version != self.version:
            client.subscribe(self.subscriptions.values(), self.version)
        client.seen_ms = now_ms
        return client

    def _make_room(self, now_ms: float) -> None:
        while self._clients:
            eldest = next(iter(self._clients))
            if len(self._clients) < MOST_CLIENTS and not self._clients[eldest].is_over(now_ms):
                return
            self._drop(eldest)

    def _drop(self, client_id: UUID) -> None:
        client = self._clients.pop(client_id)
        self._samples -= len(client.values)
        self._characters -= client.characters

    # ---- values

    def measured(self, client: Client, values: Iterable[Measured]) -> Generator[None, None, None]:
        """Keep what a client has pushed: the last value, or the sum of what it counted since the last one.

        It is done in steps, between which the client may leave.
        """
        rest = iter(values)
        while some := list(islice(rest, _STEP)):
            if self._clients.get(client.id) is not client:
                return  # it has left while its metrics were unfolded
            for name, value, is_delta in some:
                self._put(client, name, value, is_delta=is_delta)
            for name in list(islice(client.values, max(0, len(client.values) - MOST_OF_CLIENT))):
                del client.values[name]
                self._count(client, -1, name)
            yield

    def _put(self, client: Client, name: MetricName, value: float, *, is_delta: bool) -> None:
        before = client.values.pop(name, None)
        if before is None:
            if self._samples >= MOST_SAMPLES or self._characters + _characters_of(name) > MOST_CHARACTERS:
                self.dropped_samples += 1
                return
            self._count(client, 1, name)
        client.values[name] = value if before is None or not is_delta else before + value

    def _count(self, client: Client, by: int, name: MetricName) -> None:
        self._samples += by
        client.characters += by * _characters_of(name)
        self._characters += by * _characters_of(name)

    def samples(self, now_ms: float) -> Iterator[tuple[MetricName, float] | None]:
        """Yield the values of the clients that are there, each named after its client; None ends a step."""
        for client_id in list(self._clients):
            client = self._clients.get(client_id)
            if client is None:
                continue
            if client.is_over(now_ms):
                self._drop(client_id)
                continue
            tags = tuple((fact, client.facts[fact] or "") for fact in LABELS)
            for count, (name, value) in enumerate(list(client.values.items())):
                if count % 100 == 0:
                    yield None
                yield name._replace(tags=(*tags, *name.tags)), value


def _characters_of(name: MetricName) -> int:
    return len(name.type) + len(name.name) + sum(len(label) + len(text) for label, text in name.tags)
