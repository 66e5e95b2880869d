"""The state machine of a group member: join, sync, revoke, adopt, heartbeat, leave. Pure.

A member goes through these phases:

    OUT -> PREPARING -> JOINING (-> LOOKING_UP) -> SYNCING (-> REVOKING) -> ADOPTING -> STABLE
             ^ ^                                                               |          |
             | +------------------------- REBALANCE_IN_PROGRESS --------------------------+
             +---------- it had to revoke partitions: they are assigned in the next round

The leader looks up the topics of all members between joining and syncing. WAITING is the backoff before a
retry. With the eager protocol a member revokes all partitions as it prepares; with the cooperative one
(KIP-429) it keeps them until its assignment shows which of them others get, revokes those, and joins again.
A member that finds that the group continued without it has lost its partitions: others may read them already.

Two rules for edits. A partition is taken from the application before any request is sent that lets the group
assign it to another member. An answer counts only for the outstanding request: each request has a token, each
heartbeat the generation it was sent for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from ottla.consumer.assignors import (
    Assigned,
    Assignor,
    MemberSubscription,
    RebalanceProtocol,
    TopicRacks,
    shared_protocol,
)
from ottla.consumer.errors import Fenced, GroupFailed, coordinator_error
from ottla.consumer.group.leadership import Leadership, decode_assignment, encode_subscription, leadership_in
from ottla.consumer.group.rebalance_events import (
    HEARTBEAT_PHASES,
    JOIN_PHASES,
    Adopt,
    Adopted,
    Closing,
    Effect,
    Event,
    Fail,
    ForgetCoordinator,
    Heartbeat,
    HeartbeatAnswered,
    Intent,
    Join,
    Joined,
    Leave,
    LookUp,
    MemberSettings,
    Partitions,
    Phase,
    Polled,
    Refused,
    Revoke,
    Revoked,
    Subscribed,
    Sync,
    Synced,
    TimePassed,
    TopicsFound,
    TopicsSeen,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.primitives import MalformedMessage

NO_GENERATION = -1
UNKNOWN_MEMBER = ""
NO_PARTITIONS: Partitions = frozenset()

_COORDINATOR_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
_RETRY = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS, *_COORDINATOR_MOVED)


class MemberStateMachine:
    """One member: `step` takes an event and returns effects, to be carried out in that order.

    `wake_at_ms` is the time of the next `TimePassed`.
    """

    def __init__(self, settings: MemberSettings, now_ms: float) -> None:
        self.settings = settings
        self.protocol = shared_protocol(settings.assignors)
        self.phase = Phase.OUT
        self.member_id = UNKNOWN_MEMBER
        self.generation = NO_GENERATION
        self.owned: Partitions = NO_PARTITIONS
        self.intent = Intent(settings.max_poll_interval_ms, now_ms)
        self.leadership: Leadership | None = None
        self._joined_topics: frozenset[str] = frozenset()
        self._protocol_name = ""
        self._assigned: Partitions = NO_PARTITIONS
        self._last: Assigned | None = None
        self._rejoin: str | None = None
        self._reason = "the consumer starts"
        self._revoking: Partitions = NO_PARTITIONS
        self._joining_since_ms: float | None = None
        self._beat_at_ms = 0.0
        self._beat_out = False
        self._retry_at_ms = 0.0
        self._leave_by_ms = 0.0
        self._attempt = 0
        self._token = 0
        self._now_ms = now_ms
        self._effects: list[Effect] = []

    def step(self, event: Event, now_ms: float) -> list[Effect]:
        """Apply an event; return its effects."""
        self._now_ms = now_ms
        self._take(event)
        effects, self._effects = self._effects, []
        return effects

    @property
    def is_closed(self) -> bool:
        """Whether the member has left after `Closing`."""
        return self.intent.is_closing and self.phase is Phase.OUT

    @property
    def watched(self) -> TopicRacks:
        """The topics that the leader's assignment was made from; other members watch none."""
        return {} if self.leadership is None else self.leadership.watched

    @property
    def wake_at_ms(self) -> float | None:
        """When to send `TimePassed`; None if only another event can change something."""
        due = []
        if self.phase in HEARTBEAT_PHASES and self.generation != NO_GENERATION and not self._beat_out:
            due.append(self._beat_at_ms)
        if self.phase is Phase.WAITING:
            due.append(self._retry_at_ms)
        if self.phase is Phase.STABLE:
            due.append(self.intent.idle_at_ms)
        if self.phase in JOIN_PHASES and not self.intent.is_staying:
            due.append(self._leave_by_ms)
        return min(due, default=None)

    @property
    def wanted(self) -> frozenset[str] | None:
        """The topics of the subscription; None without one."""
        return self.intent.topics

    def _take(self, event: Event) -> None:
        # One case for each event, and no rule here: so mypy finds the event that none handles.
        match event:
            case Subscribed():
                self._subscribed(event.topics)
            case Polled():
                self._polled()
            case TimePassed():
                self._time_passed()
            case Closing():
                self.intent.is_closing = True
                self._may_leave()
            case TopicsSeen():
                self._topics_seen(event.topics)
            case TopicsFound():
                self._topics_found(event)
            case Revoked():
                self._revoked()
            case Adopted():
                self._adopted()
            case Joined():
                self._joined(event)
            case Synced():
                self._synced(event)
            case Refused():
                self._refused(event)
            case HeartbeatAnswered():
                self._heartbeat_answered(event)
            case _:
                assert_never(event)

    # --- what the application wants

    def _subscribed(self, topics: frozenset[str] | None) -> None:
        if topics is None:
            self.intent.topics = None
            # Also if a new subscription arrives before the member has left: its partitions are unassigned.
            self.intent.must_leave = self.phase is not Phase.OUT
            self._may_leave()
        elif self.intent.subscribe(topics) and self.phase is Phase.OUT:
            self.intent.is_idle = False
            self.intent.poll(self._now_ms)
            self._prepare("the consumer starts")
        elif self.phase is Phase.STABLE and topics != self._joined_topics:
            self._prepare("the subscription changed")

    def _polled(self) -> None:
        self.intent.poll(self._now_ms)
        if self.phase is Phase.OUT and self.intent.end_idleness():
            self._prepare("the application asks again")

    def _time_passed(self) -> None:
        if self.phase is Phase.WAITING and self._now_ms >= self._retry_at_ms:
            self._prepare(self._reason)
        if self.phase is Phase.STABLE and self._now_ms >= self.intent.idle_at_ms:
            self._leave_idle()
        if self.phase in JOIN_PHASES and not self.intent.is_staying and self._now_ms >= self._leave_by_ms:
            self._stop()
        beating = self.phase in HEARTBEAT_PHASES and self.generation != NO_GENERATION
        if beating and not self._beat_out and self._now_ms >= self._beat_at_ms:
            self._beat_out = True
            self._effects.append(Heartbeat(self.member_id, self.generation))

    def _leave_idle(self) -> None:
        """Leave, so that others get the partitions: the application does not ask for records."""
        self.intent.is_idle = True
        self._leave("the application did not ask for records within max_poll_interval_ms")
        self._forget_membership()
        self._stop()

    def _may_leave(self) -> None:
        """Begin to leave, unless the application still carries out an earlier effect.

        A member that owns partitions during a rebalance completes it: between two generations the coordinator
        accepts no commits, and finished records would be read again.
        """
        if self.phase in (Phase.PREPARING, Phase.REVOKING, Phase.ADOPTING, Phase.LEAVING, Phase.OUT):
            return
        if self.phase in JOIN_PHASES and self.owned and self.generation != NO_GENERATION:
            self._leave_by_ms = self._now_ms + self.settings.leave_timeout_ms
        else:
            self._stop()

    def _stop(self) -> None:
        """Revoke all partitions; leave after that, so that finished records are committed before."""
        self._token += 1
        self.phase = Phase.LEAVING
        if self.owned:
            self._revoke(self.owned)
        else:
            self._left()

    def _left(self) -> None:
        self._leave("the consumer is closed" if self.intent.is_closing else "the consumer unsubscribed")
        self.phase = Phase.OUT
        self.intent.must_leave = False
        self._forget_membership()
        if self.intent.is_staying:  # the application subscribed again meanwhile
            self._prepare("the subscription changed")

    def _leave(self, reason: str) -> None:
        # A static member does not leave: it is expected back within the session timeout.
        if self.member_id != UNKNOWN_MEMBER and self.settings.instance_id is None:
            self._effects.append(Leave(self.member_id, reason))

    def _forget_membership(self) -> None:
        self.member_id, self.generation = UNKNOWN_MEMBER, NO_GENERATION
        self.leadership = None
        self._beat_out = False
        self._joining_since_ms = None

    # --- revoking and joining

    def _prepare(self, reason: str) -> None:
        if not self.intent.is_staying:
            self._stop()
            return
        self.phase = Phase.PREPARING
        self._reason = reason
        self._rejoin = None
        leaving = self._to_revoke()
        if leaving:
            self._revoke(leaving)
        else:
            self._join()

    def _to_revoke(self) -> Partitions:
        if self.generation == NO_GENERATION or self.protocol is RebalanceProtocol.EAGER:
            return self.owned
        wanted = self.wanted or ()
        return frozenset(partition for partition in self.owned if partition.topic not in wanted)

    def _revoke(self, partitions: Partitions) -> None:
        self._revoking = partitions
        self._effects.append(Revoke(partitions, lost=self.generation == NO_GENERATION))

    def _revoked(self) -> None:
        self.owned -= self._revoking
        self._revoking = NO_PARTITIONS
        match self.phase:
            case Phase.PREPARING:
                # Meanwhile the other partitions may have been lost, or the subscription may have changed.
                self._prepare(self._reason)
            case Phase.REVOKING if self.intent.is_staying and self.generation != NO_GENERATION:
                self._adopt()
            case Phase.REVOKING:
                self._prepare("the group continued without this member")
            case Phase.LEAVING:
                self._stop()
            case _:
                raise AssertionError(f"no partitions are revoked while {self.phase.value}")

    def _join(self) -> None:
        self._token += 1
        self.phase = Phase.JOINING
        if self._joining_since_ms is None:
            self._joining_since_ms = self._now_ms
        self._joined_topics = self.wanted or frozenset()
        self._beat_out = False
        protocols = tuple((assignor.name, self._metadata(assignor)) for assignor in self.settings.assignors)
        self._effects.append(Join(self._token, self.member_id, protocols, self._reason))

    def _metadata(self, assignor: Assignor) -> bytes:
        return encode_subscription(
            MemberSubscription(
                topics=tuple(self._joined_topics),
                user_data=assignor.user_data(self._joined_topics, self._last),
                owned=tuple(self.owned),
                generation=self.generation,
                rack=self.settings.rack,
            )
        )

    def _joined(self, answer: Joined) -> None:
        if answer.token != self._token or self.phase is not Phase.JOINING:
            return
        self.member_id, self.generation = answer.member_id, answer.generation
        self._protocol_name = answer.protocol_name
        self._beat_at_ms = self._now_ms + self.settings.heartbeat_interval_ms
        self.leadership = None
        try:
            self.leadership = leadership_in(answer, self.settings, self._joined_topics)
        except GroupFailed as error:
            self._fail(error)
            return
        if self.leadership is None:
            self._sync({})
        else:
            self.phase = Phase.LOOKING_UP
            self._effects.append(LookUp(self._token, self.leadership.topics))

    def _topics_found(self, found: TopicsFound) -> None:
        if found.token != self._token or self.phase is not Phase.LOOKING_UP or self.leadership is None:
            return
        self.leadership.watched = dict(found.topics)
        try:
            assignments: Mapping[str, bytes] = {}
            if self.leadership.assigns:
                assignments = self.leadership.assign(self.settings.assignor(self._protocol_name))
        except Exception as error:  # a custom assignor may raise anything
            self._fail(error)
            return
        self._sync(assignments)

    def _sync(self, assignments: Mapping[str, bytes]) -> None:
        self.phase = Phase.SYNCING
        self._effects.append(
            Sync(self._token, self.member_id, self.generation, self._protocol_name, assignments)
        )

    # --- adopting an assignment

    def _synced(self, answer: Synced) -> None:
        if answer.token != self._token or self.phase is not Phase.SYNCING:
            return
        try:
            assigned = decode_assignment(answer.assignment)
        except MalformedMessage as error:
            self._fail(
                GroupFailed(f"the leader of group {self.settings.group_id!r} sent no assignment: {error}")
            )
            return
        self._attempt = 0
        self._last = Assigned(assigned, self.generation)
        if not self.intent.is_staying:
            self._stop()
            return
        wanted = self.wanted or frozenset()
        self._assigned = frozenset(partition for partition in assigned if partition.topic in wanted)
        if any(partition.topic not in self._joined_topics for partition in assigned):
            self._rejoin = "the assignment has topics that this member did not subscribe to"
        elif any(partition.topic not in wanted for partition in assigned):
            # Also if they are wanted again before the rest is adopted: nobody owns what is left out.
            self._rejoin = "the subscription changed"
        self._revoke_unassigned()

    def _revoke_unassigned(self) -> None:
        """Revoke what others get; it is assigned to them when all members joined again (KIP-429)."""
        gone = self.owned - self._assigned
        if not gone:
            self._adopt()
            return
        self.phase = Phase.REVOKING
        self._rejoin = "partitions were revoked for other members"
        self._revoke(gone)

    def _adopt(self) -> None:
        self.phase = Phase.ADOPTING
        added = self._assigned - self.owned
        self.owned = self._assigned
        self._effects.append(Adopt(self.owned, added))

    def _adopted(self) -> None:
        assert self.phase is Phase.ADOPTING, f"no assignment is adopted while {self.phase.value}"
        self.phase = Phase.STABLE
        if self._joining_since_ms is not None:
            self.intent.exclude(self._joining_since_ms, self._now_ms)
        self._joining_since_ms = None
        if not self.intent.is_staying:
            self._stop()
        elif self.generation == NO_GENERATION:
            self._prepare("the group continued without this member")
        elif self._rejoin is not None:
            self._prepare(self._rejoin)
        elif self.wanted != self._joined_topics:
            self._prepare("the subscription changed")

    # --- topics and heartbeats

    def _topics_seen(self, topics: TopicRacks) -> None:
        """Rebalance if topics changed since the assignment was made; only the leader watches topics."""
        if self.leadership is None or not self.leadership.differs(topics):
            return
        if self.phase is Phase.STABLE:
            self._prepare("topics or partitions are new or gone")
        elif self.phase in (Phase.REVOKING, Phase.ADOPTING):
            self._rejoin = self._rejoin or "topics or partitions are new or gone"

    def _heartbeat_answered(self, answer: HeartbeatAnswered) -> None:
        if (answer.member_id, answer.generation) != (self.member_id, self.generation):
            return
        self._beat_out = False
        self._beat_at_ms = self._now_ms + self.settings.heartbeat_interval_ms
        match answer.code:
            case ErrorCode.NONE:
                return
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self._must_rejoin("the group is rebalancing")
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.ILLEGAL_GENERATION:
                self._forget_generation(answer.code)
                self._must_rejoin("the group continued without this member")
            case code if code in _COORDINATOR_MOVED:
                self._effects.append(ForgetCoordinator())
                self._beat_at_ms = self._now_ms + self._backoff_ms()
            case ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                self._beat_at_ms = self._now_ms + self._backoff_ms()
            case code:
                self._fail(self._coordinator_error(code))

    def _must_rejoin(self, reason: str) -> None:
        if self.phase is Phase.STABLE:
            self._prepare(reason)
        elif self.phase in (Phase.REVOKING, Phase.ADOPTING):
            self._rejoin = self._rejoin or reason

    def _forget_generation(self, code: int) -> None:
        """Forget the generation, and an unknown member id. Owned partitions are lost: see `_to_revoke`."""
        self.generation = NO_GENERATION
        self._beat_out = False
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = UNKNOWN_MEMBER

    # --- errors

    def _refused(self, answer: Refused) -> None:
        if answer.token != self._token or self.phase not in JOIN_PHASES:
            return
        if answer.failure is not None:
            self._fail(answer.failure)
            return
        match answer.code:
            case ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
                self._join()
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.ILLEGAL_GENERATION:
                self._forget_generation(answer.code)
                self._wait()
            case ErrorCode.REBALANCE_IN_PROGRESS if self.phase is Phase.SYNCING:
                self._prepare("the group is rebalancing")
            case code if code in _RETRY:
                if code in _COORDINATOR_MOVED:
                    self._effects.append(ForgetCoordinator())
                self._wait()
            case code:
                self._fail(self._coordinator_error(code))

    def _coordinator_error(self, code: int | None) -> Exception:
        names = [assignor.name for assignor in self.settings.assignors]
        return coordinator_error(self.settings.group_id, code or 0, names, self.settings.instance_id)

    def _wait(self) -> None:
        self._token += 1
        self.phase = Phase.WAITING
        self._retry_at_ms = self._now_ms + self._backoff_ms()
        self._attempt += 1

    def _backoff_ms(self) -> float:
        return self.settings.backoff.delay_ms(self._attempt, 0.5)

    def _fail(self, error: Exception) -> None:
        """Raise an error to the application and stay out of the group until it polls; if fenced, for good."""
        self._effects.append(Fail(error))
        self.intent.fail(is_fenced=isinstance(error, Fenced))
        self.generation = NO_GENERATION
        # While the application carries out an effect, its completion makes the member leave.
        self._may_leave()
