from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import ottla.admin as admin_client
from ottla.admin.commands.cluster import cluster
from ottla.admin.commands.group import group as group_command
from ottla.client.cli import main
from ottla.client.commands import ExtensibleGroup
from ottla.client.testing import ScriptedBroker
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from ottla.protocol.messages.topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.protocol.stored_messages import ConsumerProtocolAssignment, TopicPartitions

COMMAND = Path(sys.executable).with_name("ottla")


def ottla(*arguments: str, broker: ScriptedBroker | None = None) -> Result:
    where = ["--bootstrap-server", broker.bootstrap_servers] if broker else []
    return CliRunner().invoke(main, [*arguments, *where])


def ottla_with_errors_apart(*arguments: str, broker: ScriptedBroker) -> Result:
    """Run a command with its two outputs apart: click before 8.2 mixes them unless it is asked not to."""
    apart: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    return CliRunner(**apart).invoke(main, [*arguments, "--bootstrap-server", broker.bootstrap_servers])


def test_help_lists_commands_without_importing_them() -> None:
    program = "import sys; from ottla.client.cli import main\n"
    program += "try: main(['--help'])\nexcept SystemExit: print(sorted(sys.modules), file=sys.stderr)"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert "Create, list, describe, change and delete topics" in done.stdout
    assert "'asyncio'" not in done.stderr
    assert "ottla.client.commands" not in done.stderr


def modules_imported_by(*arguments: str) -> set[str]:
    """Run a command in a process of its own; return the modules that the process imported for it."""
    program = (
        "import sys\nbefore = {*sys.modules}\nfrom ottla.client.cli import main\n"
        f"try: main({[*arguments]!r})\n"
        "finally: print(*sorted({*sys.modules} - before), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stderr.split())


MOST_MODULES = 195
"""Modules of a command that asks one broker; each takes a third of a millisecond of every start."""


def test_a_command_imports_only_what_it_needs(broker: ScriptedBroker) -> None:
    version = modules_imported_by("--version")
    listing = modules_imported_by("topic", "list", "--bootstrap-server", broker.bootstrap_servers)

    assert "asyncio" not in version
    assert "ottla.client.cluster" in listing
    not_needed = {
        "difflib", "email", "importlib.metadata", "json", "ottla.admin.groups", "ottla.admin.replicas",
        "ottla.protocol.records", "pathlib", "zipfile",
    }  # fmt: skip
    assert not (version | listing) & not_needed
    assert len(version) <= MOST_MODULES / 2
    assert len(listing) <= MOST_MODULES


def test_each_public_name_of_the_admin_client_is_there() -> None:
    for name in admin_client.__all__:
        assert getattr(admin_client, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Adminn'"):
        getattr(admin_client, "Adminn")  # noqa: B009  (a type checker knows that it is not there)


def test_tables_are_for_people_and_json_for_programs(broker: ScriptedBroker) -> None:
    table = ottla("topic", "list", broker=broker)
    listed = ottla("topic", "list", "--json", broker=broker)

    assert table.output.splitlines()[1].split() == ["orders", "2", "1", "0"]
    assert json.loads(listed.output)[0] == {
        "topic": "orders",
        "partitions": 2,
        "replicas": 1,
        "under_replicated": 0,
    }


def test_an_error_of_a_broker_is_one_line_and_an_exit_status(broker: ScriptedBroker) -> None:
    refused = CreatableTopicResult(name="a b", error_code=17, error_message="'a b' has a space")
    broker.on(CreateTopicsRequest, lambda _: CreateTopicsResponse(topics=[refused]))

    done = ottla("topic", "create", "a b", broker=broker)

    assert (done.exit_code, done.output) == (1, "Error: 'a b' has a space\n")


def test_configs_of_a_created_topic_reach_the_broker(broker: ScriptedBroker) -> None:
    created = CreatableTopicResult(name="t", num_partitions=3, replication_factor=1)
    broker.on(CreateTopicsRequest, lambda _: CreateTopicsResponse(topics=[created]))

    done = ottla("topic", "create", "t", "-p", "3", "-c", "retention.ms=5", broker=broker)

    (request,) = broker.seen(CreateTopicsRequest)
    assert done.output == "Created topic t: 3 partitions, 1 replica each.\n"
    assert request.topics[0].num_partitions == 3
    assert [(each.name, each.value) for each in request.topics[0].configs] == [("retention.ms", "5")]


def test_groups_of_all_brokers_are_listed(broker: ScriptedBroker) -> None:
    group = ListedGroup(group_id="billing", protocol_type="consumer", group_state="Stable")
    broker.on(ListGroupsRequest, lambda _: ListGroupsResponse(groups=[group]))

    done = ottla("group", "list", broker=broker)

    assert done.output.splitlines()[1].split() == ["billing", "Stable", "classic", "consumer"]


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["topic", "alter", "t"], "--partitions, --config or --delete-config"),
        (["topic", "create", "t", "-c", "retention.ms"], "KEY=VALUE"),
        (["config", "describe"], "--group NAME, --broker ID, --all-brokers and --client-metrics NAME"),
        (["group", "reset-offsets", "g"], "--to-earliest"),
        (["config", "alter", "--topic", "t", "--delete", "retention.ms"], "with --unset retention.ms"),
        (["topic", "list", "-b", "nowhere:port"], "host:port"),
        (["txn", "list", "--state", "Odd"], "Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit"),
        (["txn", "list", "--longer-than-ms", "abc"], "'abc' is not a valid number"),
        (["txn", "list", "--longer-than-ms", "-1"], "-1 is not in the range x>=0"),
        (["txn", "abort", "orders", "--start-offset", "7"], "'orders' must be TOPIC:PARTITION"),
        (["txn", "abort", ":0", "--start-offset", "7"], "':0' must be TOPIC:PARTITION"),
        (["txn", "abort", "printed:x", "--start-offset", "7"], "'printed:x' must be TOPIC:PARTITION"),
    ],
)
def test_a_usage_error_says_what_to_write(arguments: list[str], advice: str) -> None:
    done = ottla(*arguments)

    assert done.exit_code == 2
    assert advice in done.output


def test_an_unreachable_broker_fails_soon_and_with_advice(broker: ScriptedBroker) -> None:
    done = ottla("topic", "list", "-b", "127.0.0.1:1")

    assert done.exit_code == 1
    assert "cannot connect to 127.0.0.1:1: Connection refused. " in done.output
    assert "--bootstrap-server" in done.output


def test_an_unknown_command_is_refused_with_the_nearest_name() -> None:
    done = ottla("topc", "list")

    assert done.exit_code == 2
    assert done.output.endswith("Error: No such command 'topc'. Did you mean 'topic'?\n")
    assert ottla("nothing-like-it").output.endswith("Error: No such command 'nothing-like-it'.\n")


def test_a_login_at_a_broker_without_logins_is_refused_with_what_to_change(
    broker: ScriptedBroker, tmp_path: Path
) -> None:
    properties = tmp_path / "login.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=me\nsasl.password=it\n"
    )

    done = ottla("topic", "list", "--command-config", str(properties), broker=broker)

    assert done.output == (
        "Error: the broker knows no logins (SASL): connect with security.protocol=PLAINTEXT, "
        "not SASL_PLAINTEXT\n"
    )


def test_ctrl_c_ends_a_waiting_command_without_a_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [COMMAND, "topic", "list", "-b", address],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            with silent.accept()[0]:
                process.send_signal(signal.SIGINT)

                assert not process.communicate(timeout=60)[0]
                assert process.returncode == 130
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("arguments", [["--help"], ["topic", "--help"], ["topic", "list"]])
def test_output_that_finds_no_room_is_one_line(arguments: list[str], broker: ScriptedBroker) -> None:
    where = [] if "--help" in arguments else ["-b", broker.bootstrap_servers]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [COMMAND, *arguments, *where],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip

    assert done.stderr == "Error: the output cannot be written: No space left on device\n"
    assert done.returncode == 1


@pytest.fixture
def away() -> Iterator[int]:
    """A port that refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_topic_is_described_while_a_leader_is_away(broker: ScriptedBroker, away: int) -> None:
    metadata = broker.metadata("orders", partitions=3)
    metadata.brokers.append(MetadataResponseBroker(node_id=2, host="127.0.0.1", port=away))
    metadata.topics[0].partitions[1].leader_id = 2
    metadata.topics[0].partitions[2].leader_id = 3  # not even in the cluster
    broker.on(MetadataRequest, lambda _: metadata)
    broker.on(ListOffsetsRequest, lambda request: _offsets(request, 7))
    broker.on(DescribeConfigsRequest, lambda _: DescribeConfigsResponse(results=[DescribeConfigsResult()]))
    began = time.monotonic()

    done = ottla("topic", "describe", "orders", "--json", broker=broker)

    assert time.monotonic() - began < 30, done.output
    partitions = json.loads(done.output)["partitions"]
    assert [(each["leader"], each["end_offset"]) for each in partitions] == [(1, 7), (2, None), (3, None)]


def test_a_partition_that_is_not_there_is_refused_at_once(broker: ScriptedBroker) -> None:
    broker.on(FindCoordinatorRequest, lambda _: _coordinator(broker))
    broker.on(
        DescribeGroupsRequest,
        lambda _: DescribeGroupsResponse(groups=[DescribedGroup(group_id="g", group_state="Empty")]),
    )
    broker.on(OffsetFetchRequest, lambda _: OffsetFetchResponse())
    began = time.monotonic()

    done = ottla("group", "reset-offsets", "g", "--topic", "orders:7", "--to-latest", broker=broker)

    assert time.monotonic() - began < 30
    assert done.output.endswith("Error: topic 'orders' has no partition 7, only 0 to 1\n")


def test_commits_of_a_deleted_topic_are_left_out_and_named(broker: ScriptedBroker) -> None:
    topics = [
        OffsetFetchResponseTopic(
            name=name, partitions=[OffsetFetchResponsePartition(partition_index=1, committed_offset=5)]
        )
        for name in ("orders", "gone")
    ]
    broker.on(FindCoordinatorRequest, lambda _: _coordinator(broker))
    broker.on(
        DescribeGroupsRequest,
        lambda _: DescribeGroupsResponse(groups=[DescribedGroup(group_id="g", group_state="Empty")]),
    )
    broker.on(OffsetFetchRequest, lambda _: OffsetFetchResponse(topics=topics))
    broker.on(ListOffsetsRequest, lambda request: _offsets(request, 7))
    began = time.monotonic()

    done = ottla_with_errors_apart("group", "reset-offsets", "g", "--to-latest", "--json", broker=broker)

    assert time.monotonic() - began < 30
    assert done.stderr == "gone-1 is left out: there is no such partition any more.\n"
    (row,) = json.loads(done.stdout)
    assert row == {
        "topic": "orders", "partition": 1, "offset": 5, "new_offset": 7, "lag": 2, "new_lag": 0,
    }  # fmt: skip


@pytest.mark.parametrize("versions", [(0, 3), (0, 9)])
def test_describing_a_topic_does_not_create_it(versions: tuple[int, int], broker: ScriptedBroker) -> None:
    broker._limits[MetadataRequest.API_KEY] = versions
    broker.on(MetadataRequest, lambda request: _unless_created(broker, request, versions))

    done = ottla("topic", "describe", "missing", broker=broker)

    assert done.output == "Error: topic 'missing' does not exist\n"
    asked = broker.seen(MetadataRequest)
    assert all(each.topics in (None, []) or not each.allow_auto_topic_creation for each in asked)


def _unless_created(
    broker: ScriptedBroker, request: MetadataRequest, versions: tuple[int, int]
) -> MetadataResponse:
    """Answer as a broker that creates what it is asked for, unless the request forbids it."""
    response = broker.metadata("orders")
    if request.topics and versions[1] < 4:
        response = broker.metadata("orders", *(each.name or "" for each in request.topics))
    elif request.topics:
        response.topics.append(MetadataResponseTopic(name="missing", error_code=3))
    return response


def _coordinator(broker: ScriptedBroker) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(node_id=1, host=broker.host, port=broker.port)


def _offsets(request: ListOffsetsRequest, offset: int) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=each.partition_index, offset=offset)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def test_the_commands_that_other_packages_add_are_known() -> None:
    for group in (cluster, group_command):
        assert isinstance(group, ExtensibleGroup)
        added = f"ottla.{group.name}.commands"
        found = {
            name: project["name"]
            for path in Path(__file__).parents[2].glob("*/pyproject.toml")
            for project in [tomllib.loads(path.read_text(encoding="utf-8"))["project"]]
            for name in project.get("entry-points", {}).get(added, {})
        }

        assert found == group.packages


def test_all_groups_to_delete_are_tried_and_reported(broker: ScriptedBroker) -> None:
    def delete(request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        (name,) = request.groups_names
        code = ErrorCode.NONE if name in "ab" else ErrorCode.GROUP_ID_NOT_FOUND
        return DeleteGroupsResponse(results=[DeletableGroupResult(group_id=name, error_code=code)])

    broker.on(FindCoordinatorRequest, lambda _: _coordinator(broker))
    broker.on(DeleteGroupsRequest, delete)

    done = ottla_with_errors_apart("group", "delete", "a", "missing", "b", broker=broker)

    assert done.stdout == "Deleted group a.\nDeleted group b.\n"
    assert done.stderr == "Error: group 'missing' does not exist\n"
    assert done.exit_code == 1


@pytest.mark.parametrize(
    ("option", "status", "said"),
    [
        ([], 1, "Error: topic 'missing' does not exist\n"),
        (["--if-exists"], 0, "Topic missing does not exist.\n"),
    ],
)
def test_all_topics_to_delete_are_tried_and_reported(
    option: list[str], status: int, said: str, broker: ScriptedBroker
) -> None:
    def delete(request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        (name,) = request.topic_names
        code = ErrorCode.NONE if name in "ab" else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return DeleteTopicsResponse(responses=[DeletableTopicResult(name=name, error_code=code)])

    broker._limits[DeleteTopicsRequest.API_KEY] = (0, 5)
    broker.on(DeleteTopicsRequest, delete)

    done = ottla("topic", "delete", "a", "missing", "b", *option, broker=broker)

    assert done.exit_code == status
    assert done.output.splitlines() == ["Deleted topic a.", said.rstrip(), "Deleted topic b."]


def _group(broker: ScriptedBroker, commits: dict[int, int], owned: list[int]) -> None:
    """Script a broker that describes the group `billing` and partitions of `orders`, each with the end 7."""
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartitions(topic="orders", partitions=owned)]
    )
    member = DescribedGroupMember(
        member_id="m", client_id="cashier", member_assignment=assignment.to_bytes(0)
    )
    described = DescribedGroup(
        group_id="billing", group_state="Stable", protocol_type="consumer", members=[member]
    )
    found = OffsetFetchResponseTopic(
        name="orders",
        partitions=[
            OffsetFetchResponsePartition(partition_index=index, committed_offset=offset)
            for index, offset in commits.items()
        ],
    )
    broker.on(FindCoordinatorRequest, lambda _: _coordinator(broker))
    broker.on(DescribeGroupsRequest, lambda _: DescribeGroupsResponse(groups=[described]))
    broker.on(OffsetFetchRequest, lambda _: OffsetFetchResponse(topics=[found]))
    broker.on(ListOffsetsRequest, lambda request: _offsets(request, 7))


def test_a_group_is_described_with_owned_partitions_that_have_no_commit(broker: ScriptedBroker) -> None:
    _group(broker, commits={0: 5}, owned=[0, 1])

    table = ottla("group", "describe", "billing", broker=broker)
    as_json = ottla("group", "describe", "billing", "--json", broker=broker)

    assert [line.split() for line in table.stdout.splitlines()[2:]] == [
        ["orders", "0", "5", "7", "2", "cashier", "-", "m"],
        ["orders", "1", "-", "7", "-", "cashier", "-", "m"],
    ]
    assert [each["offset"] for each in json.loads(as_json.stdout)["offsets"]] == [5, None]


def test_a_commit_beyond_the_end_has_a_negative_lag_and_is_named(broker: ScriptedBroker) -> None:
    _group(broker, commits={0: 100, 1: 7}, owned=[])

    done = ottla_with_errors_apart("group", "describe", "billing", broker=broker)

    assert [line.split()[2:5] for line in done.stdout.splitlines()[2:]] == [
        ["100", "7", "-93"],
        ["7", "7", "0"],
    ]
    assert done.stderr == "orders-0: the commit 100 is beyond the end 7.\n"


def test_a_group_is_described_with_commits_of_a_deleted_partition(broker: ScriptedBroker) -> None:
    _group(broker, commits={0: 5, 9: 3}, owned=[])
    began = time.monotonic()

    done = ottla("group", "describe", "billing", broker=broker)

    assert time.monotonic() - began < 30
    assert done.stdout.splitlines()[3].split() == ["orders", "9", "3", "-", "-", "-", "-", "-"]
