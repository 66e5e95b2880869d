"""The assignors on the examples of their documentation, and what must hold whatever the group is like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.consumer.assignors import (
    Assigned,
    Assignor,
    CooperativeStickyAssignor,
    MemberSubscription,
    RangeAssignor,
    RebalanceProtocol,
    RoundRobinAssignor,
    StickyAssignor,
    TopicRacks,
    assignors,
    shared_protocol,
)
from ottla.consumer.assignors.sticky import decode_sticky, encode_sticky
from ottla.consumer.errors import GroupFailed
from ottla.consumer.group.leadership import Leadership
from ottla.protocol.topics import TopicPartition

NAMES = ["range", "roundrobin", "sticky", "cooperative-sticky"]


def topics(**partitions: int) -> TopicRacks:
    return {name: [frozenset[str]()] * count for name, count in partitions.items()}


def reading(*names: str, **facts: object) -> MemberSubscription:
    return MemberSubscription(names, **facts)  # type: ignore[arg-type]


def shown(given: Mapping[str, Sequence[TopicPartition]]) -> dict[str, str]:
    return {member: " ".join(f"{t}{p}" for t, p in sorted(given[member])) for member in sorted(given)}


def test_range_cuts_each_topic_into_ranges_with_the_first_ones_longer() -> None:
    members = {"c0": reading("t", "u"), "c1": reading("t", "u")}

    given = RangeAssignor().assign(topics(t=3, u=3), members)

    assert shown(given) == {"c0": "t0 t1 u0 u1", "c1": "t2 u2"}


def test_range_takes_static_members_first_in_the_order_of_their_names() -> None:
    members = {
        "x": reading("t", instance_id="b"),
        "y": reading("t", instance_id="a"),
        "a": reading("t"),
    }

    assert shown(RangeAssignor().assign(topics(t=3), members)) == {"a": "t2", "x": "t1", "y": "t0"}


def test_range_brings_members_to_replicas_in_their_rack() -> None:
    racks = {"t": [frozenset({"east"}), frozenset({"west"})]}
    members = {"a": reading("t", rack="west"), "b": reading("t", rack="east")}

    assert shown(RangeAssignor().assign(racks, members)) == {"a": "t1", "b": "t0"}


def test_round_robin_deals_out_and_passes_over_who_does_not_read() -> None:
    members = {"c0": reading("t"), "c1": reading("t", "u"), "c2": reading("t", "u", "v")}

    given = RoundRobinAssignor().assign(topics(t=1, u=2, v=3), members)

    assert shown(given) == {"c0": "t0", "c1": "u0", "c2": "u1 v0 v1 v2"}


def test_sticky_leaves_partitions_where_they_were_when_a_member_goes() -> None:
    assignor, there = StickyAssignor(), topics(t=2, u=2, v=2, w=2)
    names = ("t", "u", "v", "w")
    before = assignor.assign(there, {each: reading(*names) for each in ("c0", "c1", "c2")})
    staying = {
        each: reading(
            *names, user_data=assignor.user_data(frozenset(names), Assigned(tuple(before[each]), 1))
        )
        for each in ("c0", "c2")
    }

    after = assignor.assign(there, staying)

    assert shown(before) == {"c0": "t0 u1 w0", "c1": "t1 v0 w1", "c2": "u0 v1"}
    assert all(set(before[each]) <= set(after[each]) for each in staying)
    assert [len(after[each]) for each in staying] == [4, 4]


def test_cooperative_sticky_assigns_no_partition_that_another_member_still_owns() -> None:
    assignor, there = CooperativeStickyAssignor(), topics(t=4)
    owned = tuple(TopicPartition("t", index) for index in range(4))
    first = reading("t", owned=owned, generation=1)

    halfway = assignor.assign(there, {"a": first, "b": reading("t")})
    given_up = reading("t", owned=tuple(halfway["a"]), generation=2)
    after = assignor.assign(there, {"a": given_up, "b": reading("t", generation=2)})

    assert shown(halfway) == {"a": "t0 t1", "b": ""}
    assert shown(after) == {"a": "t0 t1", "b": "t2 t3"}


def test_user_data_of_both_versions_of_the_java_client_is_read() -> None:
    last = Assigned((TopicPartition("t", 0), TopicPartition("t", 2)), 7)
    with_generation = encode_sticky(last)

    assert with_generation.hex() == "0000000100017400000002000000000000000200000007"
    assert decode_sticky(with_generation) == last
    assert decode_sticky(with_generation[:-4]) == Assigned(last.partitions, -1)
    assert decode_sticky(b"no user data") == Assigned((), -1)


@pytest.mark.parametrize(
    ("specs", "protocol"),
    [
        (["range", "cooperative-sticky"], RebalanceProtocol.EAGER),
        ("cooperative-sticky", RebalanceProtocol.COOPERATIVE),
        ("org.apache.kafka.clients.consumer.StickyAssignor,range", RebalanceProtocol.EAGER),
    ],
)
def test_all_assignors_of_a_member_decide_how_it_rebalances(
    specs: str | list[str], protocol: RebalanceProtocol
) -> None:
    assert shared_protocol(assignors(specs)) is protocol


@pytest.mark.parametrize("specs", ["nearest", [], ["range", "range"]])
def test_unknown_no_and_double_assignors_are_refused(specs: str | list[str]) -> None:
    with pytest.raises(ValueError, match="assignor"):
        assignors(specs)


class OnlyForTheFirst:
    """An assignor of one's own."""

    name = "first"
    protocols = (RebalanceProtocol.EAGER,)

    def user_data(self, topics: frozenset[str], last: Assigned | None) -> bytes | None:
        return None

    def assign(
        self, topics: TopicRacks, members: Mapping[str, MemberSubscription]
    ) -> dict[str, list[TopicPartition]]:
        everything = [TopicPartition(name, index) for name in topics for index in range(len(topics[name]))]
        return {min(members): everything}


def test_any_object_with_the_methods_is_an_assignor() -> None:
    own: Assignor = OnlyForTheFirst()

    assert assignors([own, "range"])[0] is own
    assert assignors(own) == (own,)


_topics = st.dictionaries(st.sampled_from("tuvw"), st.integers(1, 9), min_size=1)


@st.composite
def _groups(draw: st.DrawFn) -> tuple[TopicRacks, dict[str, MemberSubscription]]:
    there = topics(**draw(_topics))
    names = draw(st.lists(st.text("abcdé", min_size=1), min_size=1, max_size=6, unique=True))
    reads = st.lists(st.sampled_from(sorted(there)), unique=True)
    return there, {name: reading(*draw(reads)) for name in names}


@pytest.mark.parametrize("name", NAMES)
@given(group=_groups())
@settings(max_examples=60)
def test_each_subscribed_partition_is_assigned_to_one_subscriber(
    name: str, group: tuple[TopicRacks, dict[str, MemberSubscription]]
) -> None:
    there, members = group
    read = {topic for member in members.values() for topic in member.topics}

    given = assignors(name)[0].assign({topic: there[topic] for topic in read}, members)

    everything = sorted(TopicPartition(topic, index) for topic in read for index in range(len(there[topic])))
    assert sorted(partition for partitions in given.values() for partition in partitions) == everything
    assert all(
        partition.topic in members[member].topics
        for member, partitions in given.items()
        for partition in partitions
    )


@given(count=st.integers(1, 9), partitions=_topics)
@settings(max_examples=60)
def test_sticky_shares_differ_by_one_where_all_read_the_same(count: int, partitions: dict[str, int]) -> None:
    there = topics(**partitions)
    members = {f"m{number}": reading(*there) for number in range(count)}

    sizes = [len(partitions) for partitions in StickyAssignor().assign(there, members).values()]

    assert max(sizes) - min(sizes) <= 1


class Generous:
    """An assignor that gives everything to everybody."""

    name = "generous"
    protocols = (RebalanceProtocol.EAGER,)

    def user_data(self, topics: frozenset[str], last: Assigned | None) -> bytes | None:
        return None

    def assign(
        self, topics: TopicRacks, members: Mapping[str, MemberSubscription]
    ) -> dict[str, list[TopicPartition]]:
        return {member_id: [TopicPartition("t", 0)] for member_id in members}


def test_an_assignor_that_gives_a_partition_to_two_members_is_stopped() -> None:
    leadership = Leadership({"a": reading("t"), "b": reading("t")}, assigns=True)
    leadership.watched = topics(t=1)

    with pytest.raises(GroupFailed, match="'generous' gave t-0 to a and to b"):
        leadership.assign(Generous())


@pytest.mark.parametrize(("rack", "matters"), [(None, False), ("here", True)])
def test_changed_racks_start_a_rebalance_only_if_members_have_racks(rack: str | None, matters: bool) -> None:
    leadership = Leadership({"a": reading("t"), "b": reading("t", rack=rack)}, assigns=True)
    leadership.watched = {"t": [frozenset({"here", "there"})]}

    # As while the broker that is "there" restarts.
    assert leadership.differs({"t": [frozenset({"here"})]}) is matters
    assert leadership.differs({"t": [frozenset({"here", "there"})] * 2})
