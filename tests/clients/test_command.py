"""The `ottla` command against a broker: what kcat and rpk do, and where it goes beyond them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from ottla.admin import Admin
from ottla.broker.testing import free_port
from ottla.client.cli import main
from ottla.client.commands.completion import completes
from ottla.client.config import ClientConfig
from ottla.consumer import Consumer
from ottla.producer import Producer

EIGHT_MS = int(datetime(2026, 1, 31, 8, tzinfo=UTC).timestamp() * 1_000)
MINUTE_MS = 60_000
ORDERS = "cmd-orders"


@pytest.fixture(scope="module")
def filled(servers: str) -> str:
    """Ten orders, the fifth of them an hour early: times are not in the order of offsets."""

    async def fill() -> None:
        async with Admin(servers) as admin:
            await admin.topics.create(ORDERS, partitions=1)
            await admin.topics.create("cmd-orders-eu", partitions=1)
        async with Producer(servers) as producer:
            for number in range(10):
                at_ms = EIGHT_MS + number * MINUTE_MS - (60 * MINUTE_MS if number == 4 else 0)
                await producer.send(
                    ORDERS, json.dumps({"number": number, "amount": number * 10}).encode(),
                    key=f"k{number}".encode(), timestamp_ms=at_ms, headers=[("h", b"1")],
                )  # fmt: skip
            await producer.send("cmd-orders-eu", b"from the other topic")
            await producer.flush()

    asyncio.run(fill())
    return servers


@pytest.fixture
def ottla(filled: str) -> Callable[..., Result]:
    def run(*arguments: str, **options: Any) -> Result:
        return CliRunner().invoke(main, [*arguments, "-b", filled], catch_exceptions=False, **options)

    return run


def numbers(result: Result) -> list[int]:
    assert result.exit_code == 0, result.output
    return [json.loads(json.loads(line)["value"])["number"] for line in result.stdout.splitlines()]


def test_since_and_until_look_at_the_time_of_each_record(ottla: Callable[..., Result]) -> None:
    read = ("consume", ORDERS, "--json", "--exit-at-end")
    assert numbers(ottla(*read, "--since", "2026-01-31T08:02Z")) == [2, 3, 5, 6, 7, 8, 9]
    assert numbers(ottla(*read, "--until", "2026-01-31T08:02Z")) == [0, 1, 4]
    assert numbers(ottla(*read, "--since", "2026-01-31T08:06Z", "--until", "2026-01-31T08:08Z")) == [6, 7]


def test_a_filter_is_an_expression_over_key_value_and_headers(ottla: Callable[..., Result]) -> None:
    read = ("consume", ORDERS, "--json", "--from-beginning", "--exit-at-end", "--filter")
    assert numbers(ottla(*read, "value.amount >= 70 && headers.h == '1'")) == [7, 8, 9]
    assert numbers(ottla(*read, "key == 'k3' || value.missing > 1")) == [3]
    limited = ottla(*read, "value.amount > 20", "--max-messages", "2")
    assert numbers(limited) == [3, 4]


def test_a_pattern_reads_all_topics_that_match(ottla: Callable[..., Result]) -> None:
    done = ottla("consume", "^cmd-.*", "--from-beginning", "--exit-at-end", "--format", "%t")
    assert sorted(set(done.stdout.split())) == ["cmd-orders", "cmd-orders-eu"]
    assert len(done.stdout.split()) == 11


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("{timestamp} {offset} {key}", "2026-01-31T08:09:00.000Z 9 k9"),
        ("%t [%p] at offset %o: key %k", "cmd-orders [0] at offset 9: key k9"),
        ("%T %K %S %h %%", f"{EIGHT_MS + 9 * MINUTE_MS} 2 27 h=1 %"),
        (r"%k\t%v", 'k9\t{"number": 9, "amount": 90}'),
        ("%i %d %V %H", f"2026-01-31T08:09:00.000Z {EIGHT_MS + 9 * MINUTE_MS} 27 1"),
    ],
)
def test_formats_are_those_of_python_kcat_and_rpk(
    template: str, line: str, ottla: Callable[..., Result]
) -> None:
    done = ottla("consume", ORDERS, "--tail", "1", "--exit-at-end", "--format", template)
    assert done.stdout == f"{line}\n"


def test_a_read_that_finds_nothing_says_so(ottla: Callable[..., Result]) -> None:
    read = ("consume", ORDERS, "--exit-at-end")
    assert ottla(*read).stderr == "No records: there are none up to the end.\n"
    done = ottla(*read, "--from-beginning", "--filter", "value.amount > 1000")
    assert (done.stdout, done.stderr) == ("", "No records: none of 10 matches up to the end.\n")


def test_records_are_deleted_up_to_a_time_only_when_asked_twice(
    ottla: Callable[..., Result], fresh: Callable[[str], str], servers: str
) -> None:
    topic = fresh("cmd-old")
    ottla("topic", "create", topic, "--partitions", "1")
    ottla("produce", topic, input="a\nb\nc\n")

    shown = ottla("topic", "delete-records", topic, "--before-offset", "2")
    assert shown.stderr == "Nothing is deleted yet. Add --execute to delete.\n"
    assert shown.stdout.splitlines()[1].split() == [topic, "0", "0", "2"]
    assert ottla("topic", "delete-records", f"{topic}:0", "--before", "-1h", "--execute").exit_code == 0
    assert ottla("consume", topic, "--from-beginning", "--exit-at-end").stdout == "a\nb\nc\n"

    assert ottla("topic", "delete-records", topic, "--before-offset", "2", "--execute").exit_code == 0
    assert ottla("consume", topic, "--from-beginning", "--exit-at-end").stdout == "c\n"
    assert ottla("topic", "delete-records", topic, "--all", "--execute").exit_code == 0
    assert "there are none" in ottla("consume", topic, "--from-beginning", "--exit-at-end").stderr


def test_the_lag_of_a_group_is_shown_and_watched_and_its_offsets_deleted(
    ottla: Callable[..., Result], fresh: Callable[[str], str], servers: str
) -> None:
    group = fresh("cmd-group")

    async def read() -> None:
        async with Consumer(
            ORDERS, bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest"
        ) as consumer:
            await consumer.getmany(timeout_ms=30_000, max_records=4)
            await consumer.commit()

    asyncio.run(read())
    assert json.loads(ottla("group", "lag", group, "--json").stdout) == [
        {"group": group, "topic": ORDERS, "partitions": 1, "lag": 6}
    ]
    watched = ottla("group", "lag", group, "--watch", "--every", "10ms", "--times", "2").stdout
    assert [line.split() for line in watched.splitlines() if line.startswith(group)] == [
        [group, ORDERS, "1", "6", "-", "-"],
        [group, ORDERS, "1", "6", "0", "0"],
    ]
    done = ottla("group", "delete-offsets", group, "--topic", ORDERS)
    assert done.stdout == f"Deleted the offsets of {group} for 1 partition.\n"
    assert json.loads(ottla("group", "lag", group, "--json").stdout) == []


def test_the_configuration_shows_what_differs_and_is_filtered(
    ottla: Callable[..., Result], fresh: Callable[[str], str]
) -> None:
    topic = fresh("cmd-configured")
    ottla("topic", "create", topic, "--config", "segment.bytes=1048576")
    found = json.loads(
        ottla("config", "describe", "--topic", topic, "retention", "segment.*", "--json").stdout
    )
    assert {row["key"].partition(".")[0] for row in found} >= {"retention", "segment"}
    assert found[0] == {
        "key": "segment.bytes", "value": "1048576", "source": "topic", "default": "1073741824",
        "read_only": False,
    }  # fmt: skip
    assert ottla("config", "describe", "--topic", topic, "nothing").stderr == "No such key.\n"


def test_a_cluster_is_shown_in_a_few_lines(ottla: Callable[..., Result], filled: str) -> None:
    facts = dict(line.split(maxsplit=1) for line in ottla("cluster", "info").stdout.splitlines())
    assert facts["brokers"].endswith(f"@{filled}")
    assert int(facts["topics"]) >= 2


def test_settings_of_clients_are_given_by_x(ottla: Callable[..., Result], filled: str) -> None:
    named = CliRunner().invoke(main, ["topic", "list", "-X", f"bootstrap.servers={filled}"])
    assert ORDERS in named.stdout
    wrong = ottla("topic", "list", "-X", "request.timeout=1")
    assert wrong.exit_code == 2
    assert "request.timeout" in wrong.stderr.splitlines()[-1]
    secret = ottla("topic", "list", "-X", "sasl.password=geheim")
    assert "all users of a machine can read arguments" in secret.stderr
    assert "geheim" not in secret.stderr


MISTAKES = [
    (("topic", "describe", "cmd-ordres"), "topic 'cmd-ordres' does not exist: did you mean 'cmd-orders'?"),
    (("consume", "cmd-ordres"), "topic 'cmd-ordres' does not exist: did you mean 'cmd-orders'?"),
    (("consume", "^nothing-"), "no topic matches (?:^nothing-); `ottla topic list` lists topics"),
    (("consume", "^(", "--exit-at-end"), "is no pattern"),
    (
        ("consume", ORDERS, "--since", "soon"),
        "'soon' is not a time like 2026-01-31T08:00Z, -1h, 30m, 2d, today",
    ),
    (("consume", ORDERS, "--filter", "value.amount >"), "--filter:"),
    (("consume", ORDERS, "--format", "%q"), "--format: %q is no field of kcat or rpk that is known here"),
    (("consume", ORDERS, "--format", "{valeu}"), "--format: knows topic, partition, offset, timestamp_ms"),
    (("topic", "delete-records", ORDERS), "give one of --before-offset, --before and --all"),
    (("topic", "delete-records", f"{ORDERS}:7", "--all"), "has no partition 7, only 0 to 0"),
    (("group", "lag", "--every", "often"), "'often' is not a duration like 500ms, 90s, 1h30m or 2d"),
    (("topci", "list"), "No such command 'topci'. Did you mean 'topic'?"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line_that_says_what_to_change(
    arguments: tuple[str, ...], message: str, ottla: Callable[..., Result]
) -> None:
    done = ottla(*arguments)
    assert done.exit_code in (1, 2)
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.output


def test_load_is_made_of_a_template_with_keys_times_and_a_partition(
    ottla: Callable[..., Result], fresh: Callable[[str], str]
) -> None:
    topic = fresh("cmd-load")
    ottla("topic", "create", topic, "--partitions", "2")
    done = ottla(
        "produce", topic, "--template", '{"n": {{n}}}', "--key-template", "k{{n}}", "--count", "3",
        "--timestamp", "2026-01-31T08:00Z", "--partition", "1", "--rate", "1000",
    )  # fmt: skip
    assert done.output == f"Produced 3 records to {topic}.\n"
    read = ottla("consume", topic, "--from-beginning", "--exit-at-end", "--format", "%p %k %v %i")
    assert read.stdout.splitlines() == [f'1 k{n} {{"n": {n}}} 2026-01-31T08:00:00.000Z' for n in range(3)]
    wrong = ottla("produce", topic, "--template", "{{wat}}")
    assert "{{wat}} is no field of a template" in wrong.stderr.splitlines()[-1]
    assert "--count need --template" in ottla("produce", topic, "--count", "3").stderr.splitlines()[-1]


def test_perf_prints_rates_and_percentiles(ottla: Callable[..., Result], fresh: Callable[[str], str]) -> None:
    topic = fresh("cmd-perf")
    ottla("topic", "create", topic)
    wrote = json.loads(ottla("perf", "produce", topic, "--count", "500", "--size", "50", "--json").stdout)
    assert (wrote["records"], wrote["bytes"]) == (500, 25_000)
    assert 0 < wrote["latency_ms"]["p50"] <= wrote["latency_ms"]["p99"] <= wrote["latency_ms"]["max"]
    read = ottla("perf", "consume", topic, "--count", "500").stdout
    assert read.startswith("read 500 records in ")


def test_top_draws_a_cluster(ottla: Callable[..., Result]) -> None:
    shown = ottla("top", "--times", "2", "--every", "10ms").stdout
    assert shown.count("RECORDS/S") == 2
    assert [ORDERS, "0", "10"] in [line.split() for line in shown.splitlines()]


def completed(servers: str, *words: str, **more: str) -> list[str]:
    """Return what bash is offered for the last of the words."""
    environment = {
        "_OTTLA_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("ottla", *words)),
        "COMP_CWORD": str(len(words)), "OTTLA_BOOTSTRAP_SERVER": servers,
    }  # fmt: skip
    program = "import sys; sys.argv[0] = 'ottla'; from ottla.client.cli import main; main(prog_name='ottla')"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | environment | more, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    return [line.partition(",")[2] for line in done.stdout.split()]


def test_a_shell_completes_commands_topics_groups_and_keys(filled: str, fresh: Callable[[str], str]) -> None:
    assert completed(filled, "top") == ["top", "topic"]
    assert completed(filled, "topic", "describe", "cmd-orders") == ["cmd-orders", "cmd-orders-eu"]
    assert completed(filled, "consume", "-b", filled, "cmd-orders-") == ["cmd-orders-eu"]
    assert "retention.ms" in completed(filled, "config", "describe", "retention.")
    assert completed(f"127.0.0.1:{free_port()}", "topic", "describe", "cmd") == []


def test_names_that_a_shell_would_run_are_not_completed() -> None:
    names = ["orders", "or der", "or$(reboot)", "or`reboot`", "or;reboot", "or'", "or,x", "or\nder", "or:1"]

    async def found(servers: str, config: ClientConfig) -> list[str]:
        return names

    complete = completes(found)
    with click.Context(main) as context:
        assert complete(context, click.Argument(["topic"]), "or") == ["or:1", "orders"]


def test_the_script_of_a_shell_is_printed() -> None:
    words = {"bash": "complete -o nosort", "zsh": "#compdef ottla", "fish": "complete --no-files"}
    for shell, word in words.items():
        assert word in CliRunner().invoke(main, ["completion", shell]).output


PAGE = Path(__file__).parents[2] / "docs/reference/commands-compared.md"
KAFKA_SCRIPTS = """
    connect-distributed connect-mirror-maker connect-plugin-path connect-standalone kafka-acls
    kafka-broker-api-versions kafka-client-metrics kafka-cluster kafka-configs kafka-console-consumer
    kafka-console-producer kafka-console-share-consumer kafka-consumer-groups kafka-consumer-perf-test
    kafka-delegation-tokens kafka-delete-records kafka-dump-log kafka-e2e-latency kafka-features
    kafka-get-offsets kafka-groups kafka-jmx kafka-leader-election kafka-log-dirs kafka-metadata-quorum
    kafka-metadata-shell kafka-producer-perf-test kafka-reassign-partitions kafka-replica-verification
    kafka-run-class kafka-server-start kafka-server-stop kafka-share-consumer-perf-test kafka-share-groups
    kafka-storage kafka-streams-application-reset kafka-streams-groups kafka-topics kafka-transactions
    kafka-verifiable-consumer kafka-verifiable-producer kafka-verifiable-share-consumer trogdor
    zookeeper-security-migration zookeeper-server-start zookeeper-server-stop zookeeper-shell
"""
"""The scripts in `bin` of Apache Kafka 3.9 and 4.4."""
RPK_COMMANDS = {
    "topic": "add-partitions alter-config analyze consume create delete describe describe-storage list "
    "produce trim-prefix",
    "group": "delete describe list offset-delete seek",
    "cluster": "config connections health info license logdirs maintenance partitions quotas self-test "
    "storage txn",
}
"""The commands of rpk 26.1, by the lists of their reference pages."""
KCAT_OPTIONS = "CPLQGtpbDKcmFXdqvEVhzkHlTZoefJsOu"
"""The options of kcat 1.7, by its usage."""
ON_PAGE = sorted(set(re.findall(r"`ottla ([a-z][^`]*)`", PAGE.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("line", [line for line in ON_PAGE if "topci" not in line])
def test_each_command_of_the_comparison_exists_with_its_options(line: str) -> None:
    words = [word for word in shlex.split(line.partition("`")[0].replace("\\|", "|")) if word != "…"]
    command: click.Command = main
    context = click.Context(main)
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        assert found is not None, f"ottla has no {words[0]!r}"
        command, words = found, words[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    given = {word.partition("=")[0] for word in words if word.startswith("-") and not word[1:2].isdigit()}
    assert given <= known, f"{line}: there is no {', '.join(given - known)}"


def test_the_comparison_has_each_command_of_the_others() -> None:
    page = PAGE.read_text(encoding="utf-8")
    columns = re.findall(r"`([^`]*)`", page)
    options = {letter for code in columns for word in code.split() for letter in re.findall(r"^-(\w)", word)}

    missing = [f"{name}.sh" for name in KAFKA_SCRIPTS.split() if f"`{name}.sh" not in page]
    for group, commands in RPK_COMMANDS.items():
        missing += [f"rpk {group} {name}" for name in commands.split() if f"`rpk {group} {name}" not in page]
    missing += [f"kcat -{letter}" for letter in KCAT_OPTIONS if letter not in options]

    assert not missing


ON_THE_PAGE = re.findall(
    r"^\| `ottla (.*)` \| ``?(.*?)``? \|$",
    PAGE.read_text(encoding="utf-8").partition("## Ten mistakes")[2].partition("\n## ")[0],
    re.MULTILINE,
)


def test_the_page_has_ten_mistakes() -> None:
    assert len(ON_THE_PAGE) == 10


@pytest.mark.parametrize(("typed", "answer"), ON_THE_PAGE)
def test_a_mistake_of_the_page_has_the_answer_of_the_page(typed: str, answer: str, filled: str) -> None:
    def here(text: str) -> str:
        return re.sub(r"\b(ordres|orders)\b", r"cmd-\1", text.replace("\\|", "|"))

    done = CliRunner(env={"OTTLA_BOOTSTRAP_SERVER": filled}).invoke(main, shlex.split(here(typed)))

    assert done.exit_code in (1, 2)
    line, found = done.stderr.splitlines()[-1], 0
    for part in here(answer).split("…"):
        found = line.find(part.strip(), found)
        assert found >= 0, f"{part!r} is not in {line!r}"
