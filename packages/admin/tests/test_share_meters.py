"""Records that members of a share group hold, as the metrics of brokers have them."""

from __future__ import annotations

import pytest

from ottla.admin.share_meters import acquired_by_group, acquired_records
from ottla.protocol.topics import TopicPartition

NAME = "ottla_broker_sharepartitionmetrics_acquiredmessagecount"
PAGE = f"""\
# TYPE {NAME} gauge
{NAME}{{group="workers",partition="0",topic="jobs"}} 5.0
{NAME}{{group="workers",partition="11",topic="jobs"}} 0.0
{NAME}{{group="others",partition="0",topic="jobs"}} 9.0
kafka_server_sharepartitionmetrics_inflightmessagecount{{group="workers",partition="0",topic="jobs"}} 7.0
"""


def test_acquired_records_are_those_of_the_group_by_partition() -> None:
    found = acquired_records(PAGE, "workers")

    assert found == {TopicPartition("jobs", 0): 5, TopicPartition("jobs", 11): 0}


def test_names_of_groups_may_have_characters_that_a_page_escapes() -> None:
    name = 'a "b" \\ {c},\n'
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    found = acquired_records(f'{NAME}{{group="{escaped}",partition="2",topic="jobs"}} 1.0\n', name)

    assert found == {TopicPartition("jobs", 2): 1}


def test_acquired_records_of_all_groups_are_read_at_once() -> None:
    found = acquired_by_group(PAGE)

    assert found["workers"] == acquired_records(PAGE, "workers")
    assert found["others"] == {TopicPartition("jobs", 0): 9}


@pytest.mark.parametrize(
    "sample",
    ['{partition="0",topic="jobs"} 1.0', '{group="g",partition="x",topic="jobs"} 1.0',
     '{group="g",partition="0",topic="jobs"} NaN', '{group="g",partition="0",topic="jobs"} +Inf'],
)  # fmt: skip
def test_a_sample_that_no_broker_writes_is_refused(sample: str) -> None:
    with pytest.raises(ValueError, match="not as a broker writes it"):
        acquired_by_group(f"{NAME}{sample}\n")


def test_a_page_without_share_groups_has_none() -> None:
    assert acquired_records("up 1.0\n", "workers") == {}
