"""Commands of groups at a broker that has one of each type: which they refuse, and what they show."""

from __future__ import annotations

import json
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ottla.client.cli import main
from ottla.client.testing import ScriptedBroker
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import share_groups
from ottla.protocol.messages.groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse


@pytest.fixture
def groups(broker: ScriptedBroker, serve_all_groups: Callable[[ScriptedBroker], None]) -> ScriptedBroker:
    """A broker with a group of each type, which takes commits and deletes groups."""
    serve_all_groups(broker)
    broker.on(OffsetCommitRequest, lambda _: OffsetCommitResponse(topics=[]))
    broker.on(DeleteGroupsRequest, _deleted)
    return broker


def _deleted(request: DeleteGroupsRequest, code: int = 0) -> DeleteGroupsResponse:
    results = [DeletableGroupResult(group_id=name, error_code=code) for name in request.groups_names]
    return DeleteGroupsResponse(results=results)


def ottla(broker: ScriptedBroker, *arguments: str) -> Result:
    apart: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    return CliRunner(**apart).invoke(main, [*arguments, "--bootstrap-server", broker.bootstrap_servers])


def begin(broker: ScriptedBroker, start: int, lag: int) -> None:
    """Give `shared` one partition, with a start offset and a lag; the end of its log is 10."""
    partition = share_groups.DescribeShareGroupOffsetsResponsePartition(
        partition_index=0, start_offset=start, lag=lag
    )
    topic = share_groups.DescribeShareGroupOffsetsResponseTopic(topic_name="orders", partitions=[partition])
    found = share_groups.DescribeShareGroupOffsetsResponseGroup(group_id="shared", topics=[topic])
    broker.on(
        share_groups.DescribeShareGroupOffsetsRequest,
        lambda _: share_groups.DescribeShareGroupOffsetsResponse(groups=[found]),
    )


def leave(broker: ScriptedBroker) -> None:
    """Take the members from `shared`."""
    left = share_groups.DescribedGroup(group_id="shared", group_state="Empty", group_epoch=4)
    broker.on(
        share_groups.ShareGroupDescribeRequest,
        lambda _: share_groups.ShareGroupDescribeResponse(groups=[left]),
    )


@pytest.mark.parametrize(
    ("command", "kind"), [("newer", "consumer"), ("older", "classic"), ("program", "streams")]
)
def test_share_group_delete_refuses_groups_of_other_types(
    command: str, kind: str, groups: ScriptedBroker
) -> None:
    done = ottla(groups, "share-group", "delete", command, "shared")

    assert done.stderr == f"Error: group {command!r} is a {kind} group: use `ottla group delete`\n"
    assert (done.stdout, done.exit_code) == ("Deleted share group shared.\n", 1)
    assert [sent.groups_names for sent in groups.seen(DeleteGroupsRequest)] == [["shared"]]


def test_group_delete_deletes_groups_of_every_type(groups: ScriptedBroker) -> None:
    done = ottla(groups, "group", "delete", "newer", "shared", "older", "program")

    assert done.exit_code == 0
    assert [sent.groups_names for sent in groups.seen(DeleteGroupsRequest)] == [
        ["newer"], ["shared"], ["older"], ["program"],
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["newer", "older"])
def test_share_group_reset_offsets_commits_to_no_group_of_another_type(
    name: str, groups: ScriptedBroker
) -> None:
    done = ottla(groups, "share-group", "reset-offsets", name, "--to-earliest", "--execute")

    assert "use `ottla group reset-offsets`" in done.stderr
    assert done.exit_code == 1
    assert groups.seen(OffsetCommitRequest) == []


def test_share_group_reset_offsets_makes_no_group(groups: ScriptedBroker) -> None:
    done = ottla(
        groups, "share-group", "reset-offsets", "typo", "--topic", "orders", "--to-earliest", "--execute"
    )

    assert done.stderr == "Error: group 'typo' does not exist\n"
    assert groups.seen(OffsetCommitRequest) == []


@pytest.mark.parametrize(
    ("of", "name", "kind", "use"),
    [("group", "shared", "share", "share-group"), ("share-group", "older", "classic", "group")],
)
def test_delete_offsets_names_the_command_for_the_type_of_the_group(
    of: str, name: str, kind: str, use: str, groups: ScriptedBroker
) -> None:
    done = ottla(groups, of, "delete-offsets", name, "--topic", "orders")

    assert done.stderr == f"Error: group {name!r} is a {kind} group: use `ottla {use} delete-offsets`\n"
    assert groups.seen(OffsetDeleteRequest) == groups.seen(share_groups.DeleteShareGroupOffsetsRequest) == []


def test_a_group_with_members_is_named_where_it_cannot_be_deleted(groups: ScriptedBroker) -> None:
    groups.on(DeleteGroupsRequest, lambda request: _deleted(request, int(ErrorCode.NON_EMPTY_GROUP)))

    done = ottla(groups, "group", "delete", "newer", "shared")

    assert done.stderr.splitlines() == [
        "Error: group 'newer' has members; stop them first",
        "Error: group 'shared' has members; stop them first",
    ]


def test_a_share_group_with_members_is_named_where_it_cannot_be_reset(groups: ScriptedBroker) -> None:
    groups.on(
        share_groups.AlterShareGroupOffsetsRequest,
        lambda _: share_groups.AlterShareGroupOffsetsResponse(
            error_code=int(ErrorCode.NON_EMPTY_GROUP), error_message="The group shared has members."
        ),
    )

    done = ottla(groups, "share-group", "reset-offsets", "shared", "--to-earliest", "--execute")

    assert done.stderr == "Error: group 'shared' has members; stop them first\n"


def test_a_dry_run_says_that_members_have_to_stop_first(groups: ScriptedBroker) -> None:
    done = ottla(groups, "group", "reset-offsets", "newer", "--to-earliest")

    assert done.stderr == (
        "Nothing can be changed yet: group 'newer' has a member; stop them before --execute.\n"
    )


def test_a_group_that_a_reset_makes_is_called_new(groups: ScriptedBroker) -> None:
    reset = ("group", "reset-offsets", "typo", "--topic", "orders", "--to-earliest")

    shown, done = ottla(groups, *reset), ottla(groups, *reset, "--execute")

    assert shown.stderr.splitlines()[0] == "There is no group typo: --execute makes it."
    assert done.stderr == "Group typo is new.\nCommitted 2 offsets.\n"
    assert [sent.group_id for sent in groups.seen(OffsetCommitRequest)] == ["typo"]


def test_a_shift_of_a_share_group_that_has_finished_counts_from_the_end(groups: ScriptedBroker) -> None:
    leave(groups)
    begin(groups, start=3, lag=0)

    done = ottla(groups, "share-group", "reset-offsets", "shared", "--shift-by", "-1", "--execute")

    assert done.exit_code == 0, done.output
    (sent,) = groups.seen(share_groups.AlterShareGroupOffsetsRequest)
    assert [part.start_offset for part in sent.topics[0].partitions] == [9]
    assert done.stdout.splitlines()[1].split() == ["orders", "0", "3", "9", "0", "1"]


def test_records_written_meanwhile_do_not_pass_for_finished_ones(groups: ScriptedBroker) -> None:
    leave(groups)
    begin(groups, start=3, lag=0)

    def ends_and_a_record_more(request: ListOffsetsRequest) -> ListOffsetsResponse:
        begin(groups, start=3, lag=4)  # four records were written after the first look at the group
        topics = [
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=each.partition_index, offset=0 if each.timestamp == -2 else 10
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return ListOffsetsResponse(topics=topics)

    groups.on(ListOffsetsRequest, ends_and_a_record_more)

    done = ottla(groups, "share-group", "reset-offsets", "shared", "--shift-by", "-1", "--json")

    assert json.loads(done.stdout)[0]["new_offset"] == 2


def test_a_shift_over_records_that_are_partly_acknowledged_says_so(groups: ScriptedBroker) -> None:
    leave(groups)
    begin(groups, start=3, lag=2)

    done = ottla(groups, "share-group", "reset-offsets", "shared", "--shift-by", "-1")

    assert done.stdout.splitlines()[1].split() == ["orders", "0", "3", "2", "2", "8"]
    assert done.stderr.splitlines() == [
        "orders-0: the shift counts from the start offset 3; of the records from there on, 5 are "
        "acknowledged, and the broker does not tell which.",
        "Nothing is changed yet. Add --execute to commit.",
    ]


def test_the_lag_of_a_share_group_is_the_same_in_every_command(groups: ScriptedBroker) -> None:
    begin(groups, start=3, lag=0)

    lag = json.loads(ottla(groups, "group", "lag", "shared", "--json").stdout)
    offsets = json.loads(ottla(groups, "group", "offsets", "shared", "--json").stdout)
    described = json.loads(ottla(groups, "share-group", "describe", "shared", "--json").stdout)

    assert [found["lag"] for found in (*lag, *offsets, *described)] == [0, 0, 0]


@pytest.mark.parametrize(("start", "explained"), [(-1, True), (3, False)])
def test_a_share_group_that_has_acknowledged_nothing_is_explained_where_it_has_no_lag(
    groups: ScriptedBroker, start: int, explained: bool
) -> None:
    begin(groups, start=start, lag=-1)

    done = ottla(groups, "share-group", "describe", "shared")
    as_json = ottla(groups, "share-group", "describe", "shared", "--json")

    assert ("stored with the first acknowledgement" in done.stdout.splitlines()[-1]) is explained
    assert [row["start_offset"] for row in json.loads(as_json.stdout)] == [start if start >= 0 else None]


def test_partitions_without_a_commit_are_counted_and_have_no_known_lag(groups: ScriptedBroker) -> None:
    groups.on(OffsetFetchRequest, lambda _: OffsetFetchResponse(topics=[]))

    done = ottla(groups, "group", "lag", "newer")

    assert done.stdout.splitlines()[1].split() == ["newer", "orders", "1", "-"]
    assert done.stderr == (
        "newer: 1 of the 1 partitions of orders have no known lag: no commit, or no leader that answers.\n"
    )


def test_the_help_of_share_groups_has_their_own_commands(groups: ScriptedBroker) -> None:
    shown = ottla(groups, "share-group", "reset-offsets", "--help").stdout

    assert "ottla share-group reset-offsets workers" in shown
    assert "ottla group reset-offsets" not in shown


@pytest.mark.parametrize(
    ("goal", "told"),
    [
        (("--to-offset", "9999"), "orders-0: 9999 is past the end of the log, the new offset is 10."),
        (("--shift-by", "-50"), "orders-0: -46 is before the start of the log, the new offset is 0."),
    ],
)
def test_an_offset_outside_of_the_log_is_named_with_what_stands_in_for_it(
    goal: tuple[str, str], told: str, groups: ScriptedBroker
) -> None:
    done = ottla(groups, "group", "reset-offsets", "older", *goal, "--execute")

    assert done.stderr.splitlines() == [told, "Committed 1 offset."]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--metrics", "127.0.0.1:9"), "--metrics needs a URL with http:// or https://, not '127.0.0.1:9'"),
        (("--metrics", "http://127.0.0.1:1"), "/metrics cannot be read"),
        (("--metrics", "http://127.0.0.1:1", "--members"), "leave out --members"),
    ],
)
def test_metrics_options_fail_before_a_share_group_is_shown(
    options: tuple[str, ...], told: str, groups: ScriptedBroker
) -> None:
    done = ottla(groups, "share-group", "describe", "shared", *options)

    assert done.exit_code != 0
    assert done.stdout == ""
    assert told in done.stderr


def test_one_member_is_counted_in_the_singular(groups: ScriptedBroker) -> None:
    shown = ottla(groups, "group", "describe", "newer").stdout

    assert shown.splitlines()[0].endswith(", 1 member")


def test_a_name_near_that_of_a_group_is_suggested(groups: ScriptedBroker) -> None:
    done = ottla(groups, "group", "describe", "shraed")

    assert done.stderr == "Error: group 'shraed' does not exist: did you mean 'shared'?\n"
