"""Dedupe around a handler: records that were handled are not handled again.

The order of events for one record, with `mark="after"`: its identity is locked in this process; the store is
asked, unless the prefilter knows that the identity is new; the handler runs; what it sent is acknowledged;
the mark is written; the lock is given back; the record counts as finished. A crash before the mark repeats
the handler, and one after it only skips. So nothing is lost, and what repeats is what a crash interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Self

from ottla.client.environment import nonce
from ottla.consumer.record import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.dedupe.errors import DedupeMisconfigured, MissingIdentity
from ottla.streams.dedupe.identity import Identity, by_message_id
from ottla.streams.dedupe.in_flight import Admission, Claims, InFlight, Marking, settle
from ottla.streams.dedupe.partitions import Availability, Scopes, ScopeState
from ottla.streams.dedupe.store import DedupeStore, ImmediateStore, Scope
from ottla.streams.dedupe.window import SLACK_MS
from ottla.streams.environment import now_ms


@dataclass(slots=True)
class DedupeStatistics:
    """Counts since the start."""

    handled: int = 0
    """Records whose handler succeeded."""
    duplicates: int = 0
    """Records that were not handled, because they had been."""
    missing: int = 0
    """Records without an identity, handled each time."""
    asked: int = 0
    """Records for which the store was asked; for the others the prefilter knew the answer."""
    waited: int = 0
    """Records that waited for another one with the same identity."""


NONE: Final[frozenset[bytes]] = frozenset()


class Dedupe:
    """Handles each identity once within the window of a store: `Processor(..., dedupe=Dedupe(store))`.

    The processor opens and closes it, and it serves one processor.

    `scope`: identities are unique in a partition, or in a whole topic; then members claim each record in the
    store, and no prefilter spares the question. `mark`: after the handler (a crash repeats it) or before (a
    crash loses it). `missing`: records without an identity are handled each time, or fail. `claim_lease_ms`:
    with scope topic, the time after which another member takes over what a dead one had claimed.
    """

    def __init__(
        self,
        store: DedupeStore,
        identity: Identity | None = None,
        *,
        scope: Literal["partition", "topic"] = "partition",
        mark: Literal["after", "before"] = "after",
        missing: Literal["handle", "fail"] = "handle",
        prefilter: bool = True,
        claim_lease_ms: int = 30_000,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        if not hasattr(store, "is_remote"):
            raise DedupeMisconfigured(
                f"Dedupe needs a store, such as Dedupe(SqliteStore('marks.db')), not {store!r}"
            )
        _check_choice("scope", scope, ("partition", "topic"))
        _check_choice("mark", mark, ("after", "before"))
        _check_choice("missing", missing, ("handle", "fail"))
        if scope == "topic" and not store.has_topic_scope:
            raise DedupeMisconfigured(
                f"{type(store).__name__} knows one partition at a time: use scope='partition'"
            )
        self.store = store
        self.identity = identity or by_message_id()
        self.statistics = DedupeStatistics()
        self.marks_before = mark == "before"
        self._scope: Literal["partition", "topic"] = scope
        self._missing = missing
        self._clock = clock
        self._reads = Availability("records wait")
        self._writes = Availability("nothing more is handled")
        # In a shared store another member may mark an identity of the topic at any moment: a filter filled
        # before that would call it new. A partition has one member at a time, which marks through its own
        # filter.
        self._scopes = Scopes(
            store, self._reads, clock, with_prefilter=prefilter and store.is_remote and scope == "partition"
        )
        self._in_flight = InFlight()
        self._marking = Marking(self._mark, self._close, self.spawn)
        self._mark_now = store.mark_now if isinstance(store, ImmediateStore) and not store.is_remote else None
        self._is_closed = False
        self._claims = (
            Claims(store, self._reads, nonce(), claim_lease_ms) if scope == "topic" and store.claims else None
        )
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(self.store)
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._open.push_async_callback(self._end_tasks, self._tasks)
        if self._claims is not None:
            self.spawn(self._claims.renew())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(None, None, None)

    @property
    def in_flight(self) -> int:
        """Number of identities that are being handled, or handled and not marked yet."""
        return len(self._in_flight)

    def is_prefiltered(self, partition: TopicPartition) -> bool:
        """Return whether the prefilter of a partition is filled, so that new identities cost no question."""
        state = self._scopes.current(Scope(partition.topic, partition.partition))
        return state is not None and state.is_filled

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine that ends with the guard."""
        assert self._tasks is not None, "use Dedupe in `async with`"
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def admit(
        self, partition: TopicPartition, records: Sequence[ConsumerRecord], own: frozenset[bytes] = NONE
    ) -> Admission:
        """Return those of the records that are to be handled, and lock their identities.

        Waits for records with the same identities, and for the store. `own` are identities that this work has
        marked in an earlier attempt. Raises MissingIdentity and IdentityFailed.
        """
        state = self._state(partition)
        if not state.ready.is_set():
            await state.ready.wait()
        if not self._writes.is_available:
            await self._writes.wait()
        identified = [(record, self._identity_of(record)) for record in records]
        wanted = list(
            dict.fromkeys((state.scope, identity) for _, identity in identified if identity is not None)
        )
        if await self._in_flight.acquire(wanted):
            self.statistics.waited += 1
        admission = Admission(state, wanted)
        try:
            done = await self._marked(state, [identity for _, identity in wanted if identity not in own])
            self._choose(admission, identified, done)
            if self.marks_before and admission.held:
                await self._mark([admission])
        except BaseException:
            self.abandon(admission)
            raise
        return admission

    def abandon(self, admission: Admission) -> None:
        """Give the locks back without a mark: the next record with one of the identities is handled."""
        held, admission.held = admission.held, []
        self._in_flight.release(held)
        if self._claims is not None and (release := self._claims.released(held)):
            self.spawn(self._claims.release(release))

    def finish_soon(
        self, admission: Admission, acknowledged: asyncio.Future[None] | None
    ) -> asyncio.Future[None] | None:
        """Mark handled records once what they sent is acknowledged, and give the locks back.

        Returns a future that is done then, with the error of the acknowledgement; None if it is done already.
        """
        if acknowledged is None:
            return self._mark_soon(admission, None)
        finished = asyncio.get_running_loop().create_future()
        acknowledged.add_done_callback(partial(self._acknowledged, admission, finished))
        return finished

    def _acknowledged(
        self, admission: Admission, finished: asyncio.Future[None], acknowledged: asyncio.Future[None]
    ) -> None:
        error = asyncio.CancelledError() if acknowledged.cancelled() else acknowledged.exception()
        if error is None and not self._is_closed:
            self._mark_soon(admission, finished)
            return
        self.abandon(admission)
        settle(finished, error or asyncio.CancelledError())

    def _mark_soon(
        self, admission: Admission, finished: asyncio.Future[None] | None
    ) -> asyncio.Future[None] | None:
        if admission.held and not admission.is_marked and self._mark_now is None:
            finished = finished or asyncio.get_running_loop().create_future()
            self._marking.submit(admission, finished)
            return finished
        if admission.held and not admission.is_marked and self._mark_now is not None:
            self._mark_now(admission.state.scope, admission.identities)
        admission.is_marked = True
        self._close(admission)
        if finished is not None:
            settle(finished, None)
        return finished

    def _close(self, admission: Admission) -> None:
        if admission.is_marked:
            self.statistics.handled += len(admission.records)
        self.abandon(admission)

    def revoked(self, partition: TopicPartition) -> None:
        """Forget the marks of a partition, which another member writes from now on."""
        if self._scope == "partition":
            self._scopes.forget(Scope(partition.topic, partition.partition))

    async def _marked(self, state: ScopeState, identities: list[bytes]) -> set[bytes]:
        """Return the identities that were handled, and claim the others where members compete."""
        unknown = [identity for identity in identities if not state.is_new(identity)]
        if not unknown:
            return set()
        self.statistics.asked += len(unknown)
        if self._claims is not None:
            return await self._claims.take(state.scope, unknown)
        return await self._reads.call(lambda: self.store.seen(state.scope, unknown))

    def _choose(
        self, admission: Admission, identified: list[tuple[ConsumerRecord, bytes | None]], done: set[bytes]
    ) -> None:
        """Put the records in place that are handled: the first of each identity that is not done."""
        taken = set(done)
        for record, identity in identified:
            if identity is None:
                self.statistics.missing += 1
            elif identity in taken:
                self.statistics.duplicates += 1
                continue
            else:
                taken.add(identity)
            admission.records.append(record)
        if done:
            self._in_flight.release([lock for lock in admission.held if lock[1] in done])
            admission.held = [lock for lock in admission.held if lock[1] not in done]

    async def _mark(self, admissions: list[Admission]) -> None:
        """Mark admissions of one scope."""
        state = admissions[0].state
        identities = [identity for admission in admissions for identity in admission.identities]
        # Before the mark, because the caller may be cancelled while the mark is being written.
        began_ms = self._clock()
        state.add(identities, began_ms)
        try:
            await self._writes.call(lambda: self.store.mark(state.scope, identities))
        finally:
            self._add_late(admissions, identities, began_ms)
        for admission in admissions:
            admission.is_marked = True
            if self._claims is not None:
                self._claims.ended(admission.held)

    def _add_late(self, admissions: list[Admission], identities: list[bytes], began_ms: int) -> None:
        """Add identities again if the mark took long, or the partition has been assigned again meanwhile."""
        current, ended_ms = self._scopes.current(admissions[0].state.scope), self._clock()
        is_same = all(admission.state is current for admission in admissions)
        if current is not None and (not is_same or ended_ms - began_ms > SLACK_MS // 2):
            current.add(identities, ended_ms)

    def _identity_of(self, record: ConsumerRecord) -> bytes | None:
        identity = self.identity.of(record)
        if identity is None and self._missing == "fail":
            raise MissingIdentity(record.topic, record.partition, record.offset, self.identity.name)
        return identity

    def _state(self, partition: TopicPartition) -> ScopeState:
        assert self._tasks is not None, "use Dedupe in `async with`"
        number = partition.partition if self._scope == "partition" else None
        return self._scopes.state(Scope(partition.topic, number), self.spawn)

    async def _end_tasks(self, tasks: asyncio.TaskGroup) -> None:
        self._is_closed = True
        for task in list(self._running):
            task.cancel()
        try:
            # Without the error of the block, which is nothing that tasks of the group have failed with.
            await tasks.__aexit__(None, None, None)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        expected = " or ".join(repr(choice) for choice in allowed)
        raise DedupeMisconfigured(f"{name} must be {expected}, not {value!r}")
