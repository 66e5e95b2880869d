"""The commands against a real broker: what they print, and what they leave alone."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pytest
from click.testing import CliRunner, Result

from ottla.admin import Admin
from ottla.client.cli import main
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition


class Servers(Protocol):
    """A cluster under test."""

    kind: str
    bootstrap_servers: str


Command = Callable[..., Result]


@pytest.fixture
def ottla(cluster: Servers) -> Command:
    """Run a command against the cluster."""

    def run(*arguments: str, given: str | bytes | None = None) -> Result:
        return CliRunner().invoke(
            main, arguments, given, env={"OTTLA_BOOTSTRAP_SERVER": cluster.bootstrap_servers}
        )

    return run


@pytest.mark.parametrize("options", [(), ("--partition", "0"), ("--group", "readers")])
def test_consume_never_creates_a_topic(
    options: tuple[str, ...], ottla: Command, fresh: Callable[[str], str]
) -> None:
    topic = fresh("missing")

    done = ottla("consume", topic, "--exit-at-end", *options)

    assert (done.exit_code, done.output) == (1, f"Error: topic '{topic}' does not exist\n")
    assert topic not in ottla("topic", "list").output
    assert ottla("topic", "describe", topic).output == f"Error: topic '{topic}' does not exist\n"
    assert topic not in ottla("topic", "list").output


def test_a_port_that_speaks_no_tls_is_named_with_what_to_change(
    cluster: Servers, ottla: Command, tmp_path: Path
) -> None:
    properties = tmp_path / "tls.properties"
    properties.write_text("security.protocol=SSL\n")

    done = ottla("topic", "list", "--command-config", str(properties))

    assert done.output == (
        f"Error: no broker can be reached: cannot connect to {cluster.bootstrap_servers}: it hung up on our "
        "TLS greeting; if that port speaks no TLS, connect with security.protocol=PLAINTEXT, in a file for "
        "--command-config or in a profile for --profile.\n"
    )


@pytest.mark.parametrize("options", [(), ("--daemon",)])
def test_a_data_directory_that_is_a_file_is_refused_in_one_line(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "afile"
    file.write_text("")

    below = start_broker("--data-dir", f"{file}/data", *options)
    in_settings = start_broker("--set", f"log.dirs={file}", *options)
    given = start_broker("--data-dir", str(file), *options)

    words = "cannot be a data directory: a file stands there, or above it"
    assert below == f"Error: {file}/data {words}\n"
    assert in_settings == f"Error: {file} {words}\n"
    assert given.endswith(f"Error: Invalid value for '--data-dir': Directory '{file}' is a file.\n")


def start_broker(*options: str) -> str:
    """Start a broker that cannot start; return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "ottla.broker", "start", *options],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    return done.stderr


def test_ctrl_c_ends_produce_at_a_terminal_and_what_was_typed_arrives(
    cluster: Servers, ottla: Command, fresh: Callable[[str], str]
) -> None:
    topic = fresh("typed")
    ottla("topic", "create", topic)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [Path(sys.executable).with_name("ottla"), "produce", topic, "-b", cluster.bootstrap_servers],
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        os.write(ours, b"hello\n")
        seen = ottla("consume", topic, "--from-beginning", "--max-messages", "1")
        process.send_signal(signal.SIGINT)

        assert (seen.output, process.wait(30)) == ("hello\n", 130)
    finally:
        process.kill()
        process.communicate()
        os.close(ours)
        os.close(theirs)


def test_a_line_without_key_is_named_by_number_with_how_many_were_sent(
    ottla: Command, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    topic, lines = fresh("keyed"), tmp_path / "lines.txt"
    lines.write_text("a:1\nb:2\nno key\nc:3\n")

    done = ottla("produce", topic, str(lines), "--key-separator", ":")

    words = f"{lines}, line 3: there is no key separator ':' in 'no key'; 2 records before it were sent"
    assert (done.exit_code, done.output) == (1, f"Error: {words}\n")
    assert ottla("consume", topic, "--from-beginning", "--exit-at-end").output == "1\n2\n"


def test_an_empty_input_makes_no_topic_and_says_so(ottla: Command, fresh: Callable[[str], str]) -> None:
    topic, missing = fresh("empty"), fresh("missing")
    ottla("topic", "create", topic)

    assert (
        ottla("produce", topic, given="").output
        == f"Produced 0 records to {topic}, for the input is empty.\n"
    )
    done = ottla("produce", missing, given="")

    nothing = f"Produced 0 records to {missing}, for the input is empty"
    assert done.output == f"{nothing}; topic '{missing}' does not exist, and was not created.\n"
    assert done.exit_code == 0
    assert ottla("produce", missing, "--quiet", given="").output == ""
    assert missing not in ottla("topic", "list").output


def test_json_of_a_topic_makes_the_same_records_in_another(
    ottla: Command, fresh: Callable[[str], str]
) -> None:
    source, copy = fresh("source"), fresh("copy")
    for name in (source, copy):
        ottla("topic", "create", name, "--partitions", "3")
    records: list[dict[str, Any]] = [
        {"partition": 2, "timestamp_ms": 1_700_000_000_000, "key": {"base64": "/wA="}, "value": "Zürau"},
        {"partition": 0, "timestamp_ms": 1_700_000_000_001, "key": "gone", "value": None},
        {"partition": 1, "timestamp_ms": 7, "key": None, "value": "", "headers": [["h", None], ["h", "2"]]},
    ]

    written = ottla("produce", source, "--json", given="".join(json.dumps(each) + "\n" for each in records))
    first = ottla("consume", source, "--from-beginning", "--exit-at-end", "--json").output
    copied = ottla("produce", copy, "--json", given=first)
    second = ottla("consume", copy, "--from-beginning", "--exit-at-end", "--json").output

    assert (written.exit_code, copied.output) == (0, f"Produced 3 records to {copy}.\n")
    assert sorted(first.splitlines()) == sorted(second.replace(copy, source).splitlines())
    found = {each["partition"]: each for each in map(json.loads, second.splitlines())}
    for record in records:
        assert found[record["partition"]] == {"topic": copy, "offset": 0, "headers": [], **record}


def test_tabs_and_nulls_go_in_and_out(ottla: Command, fresh: Callable[[str], str]) -> None:
    topic = fresh("tabs")
    options = ("--null-marker", "NULL")

    ottla("produce", topic, "-k", r"\t", *options, given="a\t1\nb\tNULL\n")
    done = ottla(
        "consume", topic, "--from-beginning", "--exit-at-end", "--format", r"{key}\t{value}\t.", *options
    )

    assert done.output == "a\t1\t.\nb\tNULL\t.\n"


def test_a_range_of_time_and_the_tail_are_read(ottla: Command, fresh: Callable[[str], str]) -> None:
    topic = fresh("range")
    hours = [{"timestamp_ms": 1_767_225_600_000 + hour * 3_600_000, "value": str(hour)} for hour in range(5)]
    ottla("produce", topic, "--json", given="".join(json.dumps(each) + "\n" for each in hours))

    def read(*options: str) -> list[str]:
        return ottla("consume", topic, "--exit-at-end", *options).stdout.split()

    since, until = ("--since", "2026-01-01T01:00Z"), ("--until", "2026-01-01T03:00Z")
    assert read(*since, *until) == ["1", "2"]
    assert read(*until) == ["0", "1", "2"]
    assert read(*since) == ["1", "2", "3", "4"]
    assert read("--since", "2027-01-01") == []
    assert read("--tail", "2") == ["3", "4"]
    assert read("--tail", "99", "--partition", "0") == ["0", "1", "2", "3", "4"]
    assert read("--tail", "0") == []
    assert ottla("consume", topic, "--tail", "1", "--from-beginning").exit_code == 2
    assert ottla("consume", topic, "--tail", "1", "--group", "g").exit_code == 2
    assert "2026-01-31" in ottla("consume", topic, "--since", "soon").output


def test_a_group_command_commits_where_it_stands_also_in_partitions_without_records(
    ottla: Command, fresh: Callable[[str], str]
) -> None:
    topic, group = fresh("idle"), fresh("idle")
    ottla("topic", "create", topic, "--partitions", "2")
    ottla("produce", topic, "--json", given=json.dumps({"partition": 0, "value": "before"}) + "\n")

    first = ottla("consume", topic, "--group", group, "--exit-at-end")
    for partition in (0, 1):
        ottla(
            "produce", topic, "--json", given=json.dumps({"partition": partition, "value": "between"}) + "\n"
        )
    second = ottla("consume", topic, "--group", group, "--exit-at-end", "--format", "{partition}:{value}")

    assert (first.exit_code, first.output) == (0, "No records: there are none up to the end.\n")
    assert sorted(second.output.split()) == ["0:between", "1:between"]


async def test_a_group_command_leaves_no_lag_behind_transactions(
    cluster: Servers, ottla: Command, fresh: Callable[[str], str], admin: Admin
) -> None:
    topic, group = fresh("transactions"), fresh("transactions")
    await admin.topics.create(topic, partitions=1, replication_factor=1)
    async with Producer(
        bootstrap_servers=cluster.bootstrap_servers, transactional_id=fresh("id")
    ) as producer:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"committed")
        with suppress(LookupError):
            async with producer.transaction():
                await producer.send_and_wait(topic, b"aborted")
                raise LookupError

    done = await asyncio.to_thread(
        ottla, "consume", topic, "--group", group, "--from-beginning", "--exit-at-end",
        "--isolation-level", "read_committed",
    )  # fmt: skip

    (committed,) = await admin.groups.offsets(group)
    assert (done.output, committed.offset, committed.lag) == ("committed\n", 4, 0)


async def test_offsets_of_a_group_are_shown_with_their_owners_and_its_rebalance_is_verified(
    cluster: Servers, ottla: Command, fresh: Callable[[str], str], admin: Admin
) -> None:
    topic, group = fresh("orders"), fresh("billing")
    await admin.topics.create(topic, partitions=2)
    await admin.groups.commit(group, {TopicPartition(topic, 0): 0})
    idle = await asyncio.to_thread(ottla, "group", "verify-rebalance", group)
    assert (idle.exit_code, idle.stdout) == (1, f"group {group} is Empty, not Stable\n")

    async with Consumer(
        topic, bootstrap_servers=cluster.bootstrap_servers, group_id=group, group_instance_id="one"
    ) as consumer:
        async with asyncio.timeout(60):
            while len(consumer.assignment()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        shown = await asyncio.to_thread(ottla, "group", "offsets", group, "--json")
        verified = await asyncio.to_thread(ottla, "group", "verify-rebalance", group)

    rows = json.loads(shown.stdout)
    assert [(each["group"], each["partition"], each["owner"]) for each in rows] == [
        (group, 0, "one"),
        (group, 1, "one"),
    ]
    assert (rows[0]["offset"], rows[0]["log_end"], rows[0]["lag"]) == (0, 0, 0)
    assert verified.stdout == f"Every partition that {group} reads has an owner.\n"
