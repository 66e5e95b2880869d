"""The state machine of a member that its coordinator assigns partitions to (KIP-848, KIP-932). Pure.

    OUT -> JOINING -> (REVOKING ->) (ADOPTING ->) STABLE
             ^ ^                                   |  |
             | +----- fenced: partitions are lost -+  +- a new assignment: REVOKING or ADOPTING
             +------- the application asks again, or subscribes

One kind of request, the heartbeat, joins with epoch 0, reports what this member owns, and brings its
assignment. It goes on while partitions are revoked and adopted, as the application may take its time. A
member leaves by a heartbeat with an epoch below 0, after the application lost all of its partitions.

Two rules for edits. A heartbeat names a partition as owned from before the application gets it until the
application has lost it: the coordinator may give it to others while it is not named. An answer counts only
for the outstanding heartbeat: its token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from ottla.client.retry import Backoff
from ottla.consumer.errors import Fenced, GroupFailed, coordinator_error
from ottla.consumer.group.rebalance_events import (
    Adopt,
    Adopted,
    Closing,
    CommonEvent,
    Fail,
    ForgetCoordinator,
    Intent,
    Partitions,
    Phase,
    Polled,
    Revoke,
    Revoked,
    Subscribed,
    TimePassed,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition

OUTSIDE = -1
JOINING = 0
LEAVING = -1
LEAVING_FOR_A_WHILE = -2
"""The epoch of the last heartbeat of a static member: its partitions wait for it."""

NO_PARTITIONS: Partitions = frozenset()
Assignment = Mapping[UUID, tuple[int, ...]]

_COORDINATOR_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
_FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedSettings:
    """The settings of a member; they never change. The member names itself."""

    group_id: str
    member_id: str
    instance_id: str | None = None
    max_poll_interval_ms: float = 300_000
    backoff: Backoff = field(default_factory=lambda: Backoff(jitter=0))


# --- events


@dataclass(frozen=True, slots=True)
class TopicsNamed:
    """The names of topics of an assignment; the answer to `NameTopics`, in parts."""

    names: Mapping[UUID, str]


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to `Beat`: an error code, or an epoch and perhaps a new assignment.

    `code` is None without an answer. `failure` is an error that a retry does not help.
    """

    token: int
    code: int | None
    message: str | None = None
    member_id: str = ""
    epoch: int = 0
    interval_ms: float = 0
    assignment: Assignment | None = None
    failure: Exception | None = None


AssignedEvent = TopicsNamed | Answered


# --- effects


@dataclass(frozen=True, slots=True)
class Report:
    """The contents of a heartbeat that change."""

    topics: tuple[str, ...]
    pattern: str | None
    owned: tuple[tuple[UUID, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Beat:
    """Send a heartbeat, then `Answered`. `before` is the report that the coordinator has, if any."""

    token: int
    member_id: str
    epoch: int
    report: Report
    before: Report | None


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Send the last heartbeat. Only a consumer that closes waits for the answer."""

    member_id: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class NameTopics:
    """Look up the names of topics until all are known, and send `TopicsNamed`; in place of an earlier one."""

    topic_ids: frozenset[UUID]


@dataclass(frozen=True, slots=True)
class MatchTopics:
    """Match the pattern here, and send `Subscribed`: the coordinator cannot read it."""


AssignedEffect = Revoke | Adopt | Beat | LeaveGroup | NameTopics | MatchTopics | ForgetCoordinator | Fail


class AssignedMember:
    """One member: `step` takes an event and returns effects, to be carried out in that order.

    `wake_at_ms` is the time of the next `TimePassed`.
    """

    def __init__(self, settings: AssignedSettings, now_ms: float) -> None:
        self.settings = settings
        self.phase = Phase.OUT
        self.member_id = settings.member_id
        self.epoch = OUTSIDE
        self.owned: Partitions = NO_PARTITIONS
        self.intent = Intent(settings.max_poll_interval_ms, now_ms)
        self._pattern: str | None = None
        self._target: dict[UUID, tuple[int, ...]] | None = None
        self._names: dict[UUID, str] = {}
        self._ids: dict[str, UUID] = {}
        self._is_adopted = False
        self._revoking: Partitions = NO_PARTITIONS
        self._is_adopting = False
        self._joining_since_ms: float | None = None
        self._known: Report | None = None
        self._must_report_all = False
        """The subscription changed since the outstanding heartbeat was sent."""
        self._beating: Report | None = None
        self._beat_at_ms = 0.0
        self._token = 0
        self._attempt = 0
        self._now_ms = now_ms
        self._effects: list[AssignedEffect] = []

    def step(self, event: CommonEvent | AssignedEvent, now_ms: float) -> list[AssignedEffect]:
        """Apply an event; return its effects."""
        self._now_ms = now_ms
        self._take(event)
        if self._may_beat and now_ms >= self._beat_at_ms:
            self._beat()
        effects, self._effects = self._effects, []
        return effects

    @property
    def is_closed(self) -> bool:
        """Whether the member has left after `Closing`."""
        return self.intent.is_closing and self.phase is Phase.OUT

    @property
    def wake_at_ms(self) -> float | None:
        """When to send `TimePassed`; None if only another event can change something."""
        due = []
        if self._may_beat:
            due.append(self._beat_at_ms)
        if self.phase is Phase.STABLE:
            due.append(self.intent.idle_at_ms)
        return min(due, default=None)

    def _take(self, event: CommonEvent | AssignedEvent) -> None:
        match event:
            case Subscribed():
                self._subscribed(event)
            case Polled():
                self._polled()
            case TimePassed():
                self._time_passed()
            case Closing():
                self.intent.is_closing = True
                self._stop()
            case Revoked():
                self._revoked()
            case Adopted():
                self._adopted()
            case TopicsNamed():
                self._names |= event.names
                self._reconcile()
            case Answered():
                self._answered(event)

    # --- what the application wants

    def _subscribed(self, event: Subscribed) -> None:
        if event.topics is None:
            self.intent.topics = None
            # Also if a new subscription arrives before the member has left: its partitions are unassigned.
            self.intent.must_leave = self.phase is not Phase.OUT
            self._stop()
            return
        is_joining = self.intent.subscribe(event.topics)
        self._pattern = event.pattern
        if self.phase is Phase.OUT and is_joining:
            self.intent.is_idle = False
            self.intent.poll(self._now_ms)
            self._join()
        elif self.phase not in (Phase.OUT, Phase.LEAVING):
            self._subscription_changed()

    def _subscription_changed(self) -> None:
        """Revoke the partitions of other topics now, and ask for a new assignment.

        The whole of it is asked for, as the coordinator sends only changes: topics that are subscribed to
        again, before it saw that they were not, would be missing.
        """
        if self._target is not None:
            self._target = {
                topic_id: partitions
                for topic_id, partitions in self._target.items()
                if self._is_wanted(self._names.get(topic_id, ""))
            }
        self._known, self._must_report_all = None, True
        self._beat_at_ms = min(self._beat_at_ms, self._now_ms)
        self._reconcile()

    def _is_wanted(self, topic: str) -> bool:
        return self._pattern is not None or topic in (self.intent.topics or ())

    def _polled(self) -> None:
        self.intent.poll(self._now_ms)
        if self.phase is Phase.OUT and self.intent.end_idleness():
            self._join()

    def _time_passed(self) -> None:
        if self.phase is Phase.STABLE and self._now_ms >= self.intent.idle_at_ms:
            self.intent.is_idle = True
            self._leave("the application did not ask for records within max_poll_interval_ms")
            self._stop()

    def _join(self) -> None:
        self.phase = Phase.JOINING
        self.epoch = JOINING
        self._joining_since_ms = self._now_ms
        self._known = self._target = None
        self._is_adopted = False
        self._beat_at_ms = self._now_ms

    # --- leaving

    def _stop(self) -> None:
        """Revoke all partitions; leave after that, so that finished records are committed before.

        What the application carries out now is completed first: `_go_on` comes back here.
        """
        if self.phase is Phase.OUT:
            return
        self.phase = Phase.LEAVING
        if self._is_handing_over:
            return
        if self.owned:
            self._revoke(self.owned)
        else:
            self._left()

    def _left(self) -> None:
        self._leave("the consumer is closed" if self.intent.is_closing else "the consumer unsubscribed")
        self.phase = Phase.OUT
        self.intent.must_leave = False
        if self.intent.is_staying:  # the application subscribed again meanwhile
            self._join()

    def _leave(self, reason: str) -> None:
        # Also while the answer to the first heartbeat is outstanding: it may have been applied.
        if self.epoch > JOINING or (self.epoch == JOINING and self._beating is not None):
            epoch = LEAVING if self.settings.instance_id is None else LEAVING_FOR_A_WHILE
            self._effects.append(LeaveGroup(self.member_id, epoch, reason))
        self.epoch = OUTSIDE
        self._forget_beat()

    def _forget_beat(self) -> None:
        self._token += 1
        self._beating = self._known = None

    # --- handing partitions over

    @property
    def _is_handing_over(self) -> bool:
        return bool(self._revoking) or self._is_adopting

    def _reconcile(self) -> None:
        """Revoke what the assignment lacks, then adopt the rest of it."""
        if self._is_handing_over or self._target is None or self.phase is Phase.LEAVING:
            return
        assigned = self._resolved(self._target)
        are_named = self._target.keys() <= self._names.keys()
        if gone := self.owned - assigned:
            self.phase = Phase.REVOKING
            self._is_adopted = False
            self._revoke(gone)
        elif assigned != self.owned or (are_named and not self._is_adopted):
            self.phase = Phase.ADOPTING
            self._is_adopting = self._is_adopted = True
            added, self.owned = assigned - self.owned, assigned
            self._effects.append(Adopt(assigned, added))
            self._report_soon()
        elif are_named:
            self._settle()

    def _resolved(self, target: Assignment) -> Partitions:
        """Return the partitions of topics whose names are known."""
        named = [(self._names[topic_id], topic_id) for topic_id in target if topic_id in self._names]
        self._ids |= named
        return frozenset(
            TopicPartition(name, index) for name, topic_id in named for index in target[topic_id]
        )

    def _settle(self) -> None:
        if self.phase is not Phase.STABLE and self._joining_since_ms is not None:
            self.intent.exclude(self._joining_since_ms, self._now_ms)
        self._joining_since_ms = None
        self.phase = Phase.STABLE

    def _revoke(self, partitions: Partitions) -> None:
        self._revoking = partitions
        self._effects.append(Revoke(partitions, lost=self.epoch <= JOINING))

    def _revoked(self) -> None:
        self.owned -= self._revoking
        self._revoking = NO_PARTITIONS
        self._go_on()

    def _adopted(self) -> None:
        assert self._is_adopting, f"no assignment is adopted while {self.phase.value}"
        self._is_adopting = False
        self._go_on()

    def _go_on(self) -> None:
        """Continue after the application carried out an effect."""
        if not self.intent.is_staying:
            self._stop()
        elif self.epoch == JOINING and self.owned:
            self._revoke(self.owned)
        else:
            self._report_soon()
            self._reconcile()

    # --- heartbeats

    def _report_soon(self) -> None:
        """Report at once what this member owns now, unless the coordinator knows it."""
        if self._known is not None and self._known.owned != self._report().owned:
            self._beat_at_ms = self._now_ms

    @property
    def _may_beat(self) -> bool:
        """Whether a heartbeat may be sent: one that joins, once no partition is owned any more."""
        if self._beating is not None or self.epoch == OUTSIDE:
            return False
        is_free = not self.owned and not self._is_handing_over and self.phase is not Phase.LEAVING
        return self.epoch > JOINING or is_free

    def _report(self) -> Report:
        owned: dict[UUID, list[int]] = {}
        for topic, index in sorted(self.owned):
            owned.setdefault(self._ids[topic], []).append(index)
        return Report(
            tuple(sorted(self.intent.topics or ())),
            self._pattern,
            tuple((topic_id, tuple(indexes)) for topic_id, indexes in owned.items()),
        )

    def _beat(self) -> None:
        self._token += 1
        self._beating = self._report()
        self._must_report_all = False
        self._effects.append(Beat(self._token, self.member_id, self.epoch, self._beating, self._known))

    def _answered(self, answer: Answered) -> None:
        if answer.token != self._token or self._beating is None:
            return
        report, self._beating = self._beating, None
        if answer.failure is not None:
            self._fail(answer.failure)
        elif answer.code == ErrorCode.NONE:
            self._accepted(answer, report)
        else:
            self._known = None
            self._refused(answer)

    def _accepted(self, answer: Answered, report: Report) -> None:
        self._attempt = 0
        self.member_id = answer.member_id or self.member_id
        self.epoch = answer.epoch
        self._known = None if self._must_report_all else report
        self._beat_at_ms = self._now_ms + (answer.interval_ms if self._known == self._report() else 0)
        if answer.assignment is not None:
            self._target = dict(answer.assignment)
            if unknown := self._target.keys() - self._names.keys():
                self._effects.append(NameTopics(frozenset(unknown)))
        self._reconcile()

    def _refused(self, answer: Answered) -> None:
        match answer.code:
            case code if code in _FENCED:
                self._fenced()
            case code if code in _COORDINATOR_MOVED:
                self._effects.append(ForgetCoordinator())
                self._back_off()
            case ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                self._back_off()
            case ErrorCode.INVALID_REGULAR_EXPRESSION:
                self._pattern = None
                self.intent.topics = frozenset()
                self._effects.append(MatchTopics())
                self._back_off()
            case _:
                self._fail(_error(self.settings, answer))

    def _fenced(self) -> None:
        """Join again; the group gave the partitions to others already."""
        if self.phase is Phase.LEAVING:
            self.epoch = OUTSIDE
            return
        is_repeated = self._attempt > 0
        self._join()
        self._back_off()
        if not is_repeated:
            self._beat_at_ms = self._now_ms
        if not self._is_handing_over:
            self._go_on()

    def _back_off(self) -> None:
        self._beat_at_ms = self._now_ms + self.settings.backoff.delay_ms(self._attempt, 0.5)
        self._attempt += 1

    def _fail(self, error: Exception) -> None:
        """Raise an error to the application and stay out of the group until it polls; if fenced, for good."""
        self._effects.append(Fail(error))
        self.intent.fail(is_fenced=isinstance(error, Fenced))
        self.epoch = OUTSIDE
        self._forget_beat()
        self._stop()


def _error(settings: AssignedSettings, answer: Answered) -> Exception:
    """Return the exception for an error that keeps a member out of its group."""
    group = settings.group_id
    match answer.code:
        case ErrorCode.UNRELEASED_INSTANCE_ID:
            return GroupFailed(
                f"group {group!r} still has a member {settings.instance_id!r}: one that ended without a last "
                "heartbeat is removed after its session timeout; ask again then, or give each running "
                "consumer a group_instance_id of its own"
            )
        case ErrorCode.GROUP_ID_NOT_FOUND | ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            return GroupFailed(
                f"group {group!r} is of another type ({answer.message or 'no more is said'}); look at it "
                f"with `ottla group describe {group}`, or choose another group_id"
            )
        case ErrorCode.UNSUPPORTED_ASSIGNOR | ErrorCode.UNSUPPORTED_VERSION | ErrorCode.INVALID_REQUEST:
            return GroupFailed(f"group {group!r} refused this member: {answer.message or answer.code}")
    return coordinator_error(group, answer.code or 0, [], settings.instance_id)
