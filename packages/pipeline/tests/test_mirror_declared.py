"""Declarations of mirrors."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.cluster import NoSuchTopic
from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.declaration import cluster_errors
from ottla.pipeline.jobs.mirror import Mirror
from ottla.pipeline.jobs.mirroring.offset_mapping import Origin
from ottla.pipeline.jobs.mirroring.topics_and_groups import circular_topics, origins_of
from ottla.pipeline.source.config import TopicSelection


def mirror(**given: Any) -> Mirror:
    base: dict[str, Any] = {
        "kind": "mirror", "name": "backup", "checkpoint": "state",
        "source": {"bootstrap_servers": "a:9092", "topics": ["orders"]},
        "target": {"bootstrap_servers": "b:9092"},
    }  # fmt: skip
    return Mirror.model_validate(base | given)


def test_a_mirror_between_two_clusters_is_well_declared() -> None:
    found = mirror()
    assert list(found.inspect()) == []
    assert found.clusters().copy_name("orders") == "orders"
    assert mirror(rename="north.{topic}").clusters().copy_name("orders") == "north.orders"
    assert found.clusters().source_config().isolation_level == "read_committed"


@pytest.mark.parametrize(
    ("given", "path", "said"),
    [
        ({"target": {"bootstrap_servers": "a:9092"}}, ("target", "bootstrap_servers"), "into themselves"),
        ({"rename": "copy of {topic}"}, ("rename",), "name of a topic"),
        (
            {"rename": "all", "source": {"bootstrap_servers": "a:9092", "pattern": ".*"}},
            ("rename",),
            "must contain {topic}",
        ),
        (
            {"source": {"bootstrap_servers": "a:9092", "topics": ["x"], "options": {"minPartitions": 9}}},
            ("source", "options", "minPartitions"),
            "order",
        ),
        (
            {"source": {"bootstrap_servers": "a:9092", "topics": ["x"], "starting_offsets": '{"x":{"0":1}}'}},
            ("source", "starting_offsets"),
            "earliest or latest",
        ),
        (
            {"target": {"bootstrap_servers": "b:9092", "options": {"acks": "all"}}},
            ("target", "options", "acks"),
            "kafka.",
        ),
        (
            {"source": {"bootstrap_servers": "a:9092", "topics": ["x"], "options": {"startingTimestamp": 5}}},
            ("source", "options", "startingTimestamp"),
            "unchanged",
        ),
        (
            {
                "source": {
                    "bootstrap_servers": "a:9092",
                    "topics": ["x"],
                    "options": {"maxTriggerDelay": "9s"},
                }
            },
            ("source", "options", "maxTriggerDelay"),
            "spark",
        ),
        ({"exclude": ["orders"]}, ("source", "topics", 0), "excluded"),
        ({"exclude": ["(x"]}, ("exclude", 0), "regular expression"),
        ({"groups": {"pattern": "(x"}}, ("groups", "pattern"), "regular expression"),
        (
            {"source": {"bootstrap_servers": "a:9092", "topics": ["__consumer_offsets"]}},
            ("source", "topics", 0),
            "internal",
        ),
    ],
)
def test_invalid_settings_are_mistakes_with_their_paths(
    given: dict[str, Any], path: tuple[str, ...], said: str
) -> None:
    (mistake,) = mirror(**given).inspect()
    assert mistake.path == path
    assert said in mistake.message


def test_within_one_cluster_copies_need_other_names() -> None:
    assert list(mirror(target={"bootstrap_servers": "a:9092"}, rename="copy.{topic}").inspect()) == []


@pytest.mark.parametrize(
    ("topic", "is_wanted"),
    [
        ("orders", True), ("orders-old", True), ("tmp-1", False), ("bills", False), ("orders.tmp", False),
        ("__consumer_offsets", False), ("ottla-mirror-offsets", False), ("orders-round", True),
        ("pre-orders", False), ("ORDERS.TMP", False), ("tmp-2-kept", True), ("audit", True),
        ("Audit-1", True), ("audit-1-old", False),
    ],
)  # fmt: skip
def test_both_engines_take_the_same_topics(topic: str, is_wanted: bool) -> None:
    source = {"bootstrap_servers": "a:9092", "pattern": "(?i)orders[a-z.-]*|tmp-.*|_.*|ottla.*|audit(-1)?"}
    found = mirror(source=source, exclude=["tmp-[0-9]", r"(?i).*\.tmp"])
    assert list(found.inspect()) == []
    assert found.wants(topic) == is_wanted
    assert TopicSelection(pattern=found.pattern_without([])).matches(topic) == is_wanted
    but = TopicSelection(pattern=found.pattern_without(["orders-round"]))
    assert but.matches(topic) == (is_wanted and topic != "orders-round")


@pytest.mark.parametrize(
    ("pattern", "topic", "is_wanted"),
    [
        (r"(\w+)-\1", "a-a", True), (r"(\w+)-\1", "a-b", False), (r"(\w+)-\1", "tmp-tmp", False),
        ("(?x) orders # and nothing else", "orders", True), ("(?x) orders # and no other", "orders2", False),
    ],
)  # fmt: skip
def test_patterns_mean_the_same_as_parts_of_one(pattern: str, topic: str, is_wanted: bool) -> None:
    source = {"bootstrap_servers": "a:9092", "pattern": pattern}
    found = mirror(source=source, engine="spark", exclude=["(tmp|old)-.*", "(?x) x # y"])
    assert list(found.inspect()) == []
    assert found.wants(topic) == is_wanted
    assert TopicSelection(pattern=found.pattern_without([])).matches(topic) == is_wanted


@pytest.mark.parametrize("refused", [r"(a|b)-\1", "(?P<one>a)(?P=one)", "(?P<whole>x)"])
def test_patterns_that_cannot_be_parts_of_one_are_refused_for_spark(refused: str) -> None:
    source = {"bootstrap_servers": "a:9092", "pattern": "(?P<whole>.*)"}
    assert list(mirror(source=source, exclude=[refused]).inspect()) == []
    (found,) = mirror(source=source, exclude=[refused], engine="spark").inspect()
    assert found.path[0] == "exclude"
    (other,) = mirror(source=source, exclude=[refused, r"a\\1"], engine="spark").inspect()
    assert other.path[0] == "exclude"


SECURE = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "josef",
}


def test_each_side_has_security_of_its_own() -> None:
    found = mirror(
        source={
            "bootstrap_servers": "a:9092",
            "topics": ["orders"],
            "options": SECURE | {"kafka.sasl.password": "x"},
        },
        target={"bootstrap_servers": "b:9092", "options": SECURE | {"kafka.sasl.password": "y"}},
    )
    assert list(found.inspect()) == []
    clusters = found.clusters()
    source = clusters.source_config().client
    for client, server, password in [
        (source, "a:9092", "x"), (clusters.target_client(), "b:9092", "y"),
        (clusters.copies_config().client, "b:9092", "y"), (clusters.producer_config().client, "b:9092", "y"),
    ]:  # fmt: skip
        assert client.bootstrap_servers == server
        assert client.security.security_protocol == "SASL_SSL"
        assert client.security.sasl_password == password


def test_topics_that_came_from_the_target_form_a_cycle() -> None:
    known = {
        "north.orders": Origin("one", ("a",)),
        "far": Origin("two", ("a", "c")),
        "own": Origin("x", ("d",)),
    }
    topics = ["north.orders", "far", "own", "bills"]
    assert circular_topics(topics, known, "a").keys() == {"north.orders", "far"}
    assert circular_topics(topics, known, "b") == {}


def test_a_copy_of_a_copy_remembers_its_whole_way() -> None:
    known = {"north.orders": Origin("one", ("a",))}
    found = origins_of({"north.orders": "x", "bills": "y"}, known, "two", "b")
    assert found == {"x": Origin("two", ("a", "b")), "y": Origin("two", ("b",))}


def test_a_topic_that_is_missing_is_no_failing_cluster() -> None:
    with pytest.raises(PipelineError) as raised, cluster_errors():
        raise NoSuchTopic("nosuch")
    assert str(raised.value) == "topic 'nosuch' does not exist"
    with pytest.raises(PipelineError, match=r"^a cluster failed: .*TimeoutError"), cluster_errors():
        raise TimeoutError
