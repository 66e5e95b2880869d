"""Plans: what a change would do, in words and rows, and the call that does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from ottla.admin import Admin
from ottla.console.clusters.replica_grid import ReplicaGrid
from ottla.console.logins.access import Need, Role
from ottla.console.web.fields import Unclear, is_whole
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.console.clusters.connections import ShownCluster

MOST_ROWS: Final = 500
SHOWN: Final = "shown"
"""The field with the offsets, or another text, of a preview."""


@dataclass(frozen=True, slots=True)
class Field:
    """One input of a form; `hidden` ones come from the link that led there."""

    name: str
    label: str
    value: str = ""
    kind: Literal["text", "number", "lines", "hidden", "choice", "check"] = "text"
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A change before it is done.

    `perform`, or `act` for a change that no broker does, is None until the form has all that is needed, and
    `unclear` says what is missing. With `typed` the user must type that name first: the change cannot be
    taken back.
    """

    title: str
    button: str
    fields: tuple[Field, ...]
    summary: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    typed: str = ""
    unclear: str = ""
    perform: Callable[[Admin], Awaitable[str]] | None = None
    act: Callable[[], Awaitable[str]] | None = None
    after: Callable[[Admin], Awaitable[str]] | None = None
    """Work that follows the change, in its time: it returns its outcome for the audit log."""
    back: str = ""
    """Where a link leads after the change, below the cluster's address."""
    topics: frozenset[str] = frozenset()
    """Further topics that the change is about; one without any role over them may not even see the plan."""
    is_data: bool = False
    """Whether its fields are data that does not belong into addresses: of records, secret, or too long."""
    shown: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The offsets of the preview: the change is of these, as the cluster moves on meanwhile."""
    shown_text: str = ""
    """The preview of a change that is not of offsets, as text."""
    picture: ReplicaGrid | None = None
    """Where replicas are, and will be."""

    @property
    def preview(self) -> str:
        """The preview as a form carries it."""
        offsets = (f"{where.topic}:{where.partition}:{offset}" for where, offset in self.shown.items())
        return self.shown_text or " ".join(offsets)

    @property
    def is_possible(self) -> bool:
        """Whether the form has all that the change needs."""
        return self.perform is not None or self.act is not None

    @property
    def sent(self) -> tuple[Field, ...]:
        """The fields that are sent with the button: the user's, and the preview."""
        return (*self.fields, Field(SHOWN, "", self.preview, "hidden")) if self.preview else self.fields


Form = Mapping[str, str]
Planner = Callable[[Admin, Form], Awaitable[Plan]]
ServicePlanner = Callable[["ShownCluster", Form], Awaitable[Plan]]


class Change:
    """A planner, and the right that its change needs: a role over the topic or group that its form names.

    Where it names a field for neither, the role must be over the whole cluster. `reads` is the field of a
    topic that the plan reads, which its viewer must see. `hides` are the fields that may be secret: the audit
    log has their length only.
    """

    def __init__(
        self, planner: Planner, role: Role, topic: str = "", group: str = "", reads: str = "",
        hides: Collection[str] = (),
    ) -> None:  # fmt: skip
        self._planner = planner
        self._role = role
        self._topic = topic
        self._group = group
        self._reads = reads
        self.hides = frozenset(hides)

    async def __call__(self, admin: Admin, form: Form) -> Plan:
        """Return the plan of a form."""
        return await self._planner(admin, form)

    def need(self, cluster: str, form: Form) -> Need:
        """Return the right that a form needs; one that names nothing yet is shown to all with the role."""
        topic = self._topic and form.get(self._topic, "").strip()
        group = self._group and form.get(self._group, "").strip()
        is_whole = not (self._topic or self._group)
        return Need(self._role, cluster, topic or None, group or None, is_whole=is_whole)

    def need_to_read(self, cluster: str, form: Form) -> Need:
        """Return the right to see that which the plan reads; without it, not even that it exists is shown."""
        topic = self._reads and form.get(self._reads, "").strip()
        return Need(cluster=cluster, topic=topic or None)


class ServiceChange:
    """A planner of a change that a service beside the brokers does, for a role over the whole cluster.

    `hides` are the fields that may be secret.
    """

    def __init__(self, planner: ServicePlanner, role: Role, hides: Collection[str] = ()) -> None:
        self._planner = planner
        self._role = role
        self.hides = frozenset(hides)

    async def __call__(self, cluster: ShownCluster, form: Form) -> Plan:
        """Return the plan of a form."""
        return await self._planner(cluster, form)

    def need(self, cluster: str, _: Form) -> Need:
        """Return the right that it needs."""
        return Need(self._role, cluster, is_whole=True)


def service_needs(role: Role, *, hides: Collection[str] = ()) -> Callable[[ServicePlanner], ServiceChange]:
    """Declare the role over the whole cluster that a change of a service needs."""
    return lambda planner: ServiceChange(planner, role, hides)


def needs(
    role: Role, *, topic: str = "", group: str = "", reads: str = "", hides: Collection[str] = ()
) -> Callable[[Planner], Change]:
    """Declare the right that a change needs, with the fields of the form that name its topic and group."""
    return lambda planner: Change(planner, role, topic, group, reads, hides)


def shown_offsets(form: Form, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int] | None:
    """Return the offsets of the preview that a form was sent from; None for a form without one.

    Raises Unclear where the partitions are not those of the preview.
    """
    if not (text := form.get(SHOWN, "")):
        return None
    found = {}
    for part in text.split():
        topic, _, rest = part.partition(":")
        index, _, offset = rest.partition(":")
        if not (is_whole(index) and is_whole(offset)):
            raise Unclear("the offsets of the preview cannot be read: look at it again")
        found[TopicPartition(topic, int(index))] = int(offset)
    if found.keys() != set(partitions):
        raise Unclear("the partitions are not those of the preview any more: look at it again")
    return found


def cut(rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return as many rows as a page shows, with one that counts the others."""
    if len(rows) <= MOST_ROWS:
        return tuple(rows)
    return (*rows[:MOST_ROWS], (f"{len(rows) - MOST_ROWS} more", *[""] * (len(rows[0]) - 1)))
