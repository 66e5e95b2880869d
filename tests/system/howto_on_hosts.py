"""Run the commands of docs/howto/run-a-cluster-on-hosts.md on hosts: network namespaces with an sshd each.

Each host has an address, a name, its own `/var/lib/ottla`, and an `/opt/ottla` with two versions: an
earlier commit as 0.1, with which the cluster begins, and this tree as 0.2. The commands run on a machine of
their own, as they stand on the page, but for the user of ssh and what needs PyPI. Meanwhile a confluent-kafka
producer writes with acks=all, and a group reads; at the end everything that was acknowledged must be there,
and the group must have read it. Each broker's answer to ApiVersions shows which version it runs. Needs root,
git, PyPI and a compiler.

python tests/system/howto_on_hosts.py [--from REF | --from-python PYTHON]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import broker_versions
from chaos_log import read_back
from cluster_checks import Acknowledgements, acknowledgements, disordered, places_lost
from earlier_version import EARLIER, NotInstalled, install
from ssh_machines import FIRST, ROOT, SECOND, Machines

PAGE: Final = ROOT / "docs/howto/run-a-cluster-on-hosts.md"
TOPIC: Final = "orders"
PARTITIONS: Final = 6
NEEDS_PYPI: Final = "pip install"
"""Commands with these words install a version, which the hosts have already."""
BROKERS: Final = ((1, 101), (1, 102), (2, 201), (2, 202), (3, 301), (3, 302))
"""The brokers of the page with the numbers of their hosts."""
READ_BOUND_S: Final = 120.0
UNCOMMITTED: Final = 2_000
"""Offsets by which the group may go back: those of a minute, and it commits several times a second."""
CONSOLE: Final = re.compile(r"^## (.*?)$|^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands() -> dict[str, list[str]]:
    """The commands of the page by the heading that they stand under."""
    found: dict[str, list[str]] = {}
    heading = ""
    for each in CONSOLE.finditer(PAGE.read_text()):
        if each[1]:
            heading = each[1]
            found[heading] = []
        else:
            lines = (line[2:] for line in each[2].splitlines() if line.startswith("$ "))
            found[heading] += [line.replace("ottla@", "") for line in lines if NEEDS_PYPI not in line]
    return found


def hosts_file() -> str:
    """The file of hosts on the page."""
    written = re.search(r"^```text\n# hosts.txt\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert written is not None
    return written[1].replace("ottla@", "")


def follow_the_page(machines: Machines) -> list[str]:
    """Run everything in the page's order; return what is wrong."""
    page = commands()
    (machines.folder / "hosts.txt").write_text(hosts_file())
    run_all(machines, page["Run it on three machines"])
    if of_this_tree(machines):
        raise SystemExit("an upgrade would not show: the earlier version has the APIs of this tree")
    wrong: list[str] = []
    machines.run(f"ottla topic create {TOPIC} --partitions {PARTITIONS} -b kafka1.example:9092")
    written, read = machines.folder / "journal", machines.folder / "read"
    topic = ("--kind", "confluent", "--topic", TOPIC, "--partitions", str(PARTITIONS))
    with machines.client("cluster_reader.py", *topic, "--group", "readers", "--journal", str(read)):
        with machines.client("cluster_writer.py", *topic, "--name", "w", "--journal", str(written)):
            wrong += upgrade_and_back(machines, page)
            machines.run("ssh kafka2.example 'kill -9 $(cat /var/lib/ottla/broker-201/broker.pid)'")
            run_all(machines, page["Replace a broker"], page["Expand it"])
            machines.run("ottla cluster describe -b kafka1.example:9092")
            machines.run(f"ottla replica lag --topic {TOPIC} -b kafka1.example:9092")
        writer = acknowledgements("w", written)
        wrong += judge_reader(read, writer)
    machines.run(f"ottla replica verify --topic {TOPIC} -b kafka1.example:9092")
    log = read_back("kafka1.example:9092", TOPIC, PARTITIONS, machines.prefix)
    run_all(machines, page["Stop it"])
    gone = places_lost(log, writer)
    print(f"{len(writer.places):,} records acknowledged, {len(writer.refused)} refused, {len(gone)} lost")
    lost = [f"{len(gone)} records lost"] if gone else []
    unfinished = [] if writer.ended else ["records stayed without acknowledgement"]
    return [*wrong, *writer.wrong, *lost, *unfinished, *disordered(log, "w")]


def run_all(machines: Machines, *groups: list[str]) -> None:
    """Run commands of the page."""
    for group in groups:
        for each in group:
            machines.run(each)


# ---- versions


def upgrade_and_back(machines: Machines, page: dict[str, list[str]]) -> list[str]:
    """Upgrade all brokers and use transactions, before and after a step back; return what is wrong."""
    machines.version = SECOND
    wrong = restart_all(machines, page["Upgrade it"], SECOND)
    wrong += use_transactions(machines, "payments")
    wrong += restart_all(machines, page["Take an upgrade back"], FIRST)
    wrong += judge_transactions(broker_versions.committed(machines.prefix, machines.servers, "payments"))
    wrong += restart_all(machines, page["Upgrade it"], SECOND)
    return [*wrong, *use_transactions(machines, "refunds")]


def restart_all(machines: Machines, group: list[str], version: str) -> list[str]:
    """Restart one broker after another by commands of the page; return which do not run the version then."""
    wrong: list[str] = []
    for host, broker in BROKERS:
        restart(machines, group, host, broker)
        if (broker in of_this_tree(machines)) != (version == SECOND):
            wrong.append(f"broker {broker} does not run {version}")
    return wrong


def restart(machines: Machines, group: list[str], host: int, broker: int) -> None:
    """Run the commands that restart a broker, which stand on the page for the first broker."""
    asked = f"kafka{host % 3 + 1}.example:9092"
    for each in group:
        command = each.replace("broker-101", f"broker-{broker}").replace("kafka2.example:9092", asked)
        machines.run(command.replace("ssh kafka1.", f"ssh kafka{host}."))


def of_this_tree(machines: Machines) -> list[int]:
    """The brokers that tell clients the versions of requests that this tree serves."""
    addresses = {f"kafka{host}.example:{9091 + broker % 100}": broker for host, broker in BROKERS}
    served = broker_versions.served(machines.prefix, list(addresses))
    ours = broker_versions.of_this_tree()
    found = [broker for address, broker in addresses.items() if served[address] == ours]
    print(f"    ApiVersions of this tree: {found or 'none'}", flush=True)
    return found


def use_transactions(machines: Machines, topic: str) -> list[str]:
    """Commit a transaction and abort one, which only the new version does; return what is wrong."""
    machines.run(f"ottla topic create {topic} --partitions 3 -b kafka1.example:9092")
    return judge_transactions(broker_versions.transact(machines.prefix, machines.servers, topic))


def judge_transactions(read: list[str]) -> list[str]:
    """Compare what readers of committed records are given with what was committed; return what is wrong."""
    print(f"    {len(read)} records of committed transactions read", flush=True)
    if sorted(read) == sorted(broker_versions.COMMITTED):
        return []
    return [f"a committed transaction is not read as it was written: {read}"]


# ---- the group


def judge_reader(journal: Path, writer: Acknowledgements) -> list[str]:
    """Wait until the group has read all that was acknowledged; return what is wrong."""
    until_s = time.monotonic() + READ_BOUND_S
    wanted = {(partition, offset) for partition, offset, _ in writer.places}
    while not wanted <= set(read := places_read(journal)) and time.monotonic() < until_s:
        time.sleep(1)
    unread, back = len(wanted.difference(read)), longest_step_back(read)
    print(f"{len(read):,} records read by the group, {unread} unread, {back} at most read again at once")
    wrong = [f"the group went back by {back} records: it lost its offsets"] if back > UNCOMMITTED else []
    return [*wrong, *([f"the group has not read {unread} records"] if unread else [])]


def places_read(journal: Path) -> list[tuple[int, int]]:
    """The (partition, offset) of each record that the group was given, in order."""
    lines = (line.split() for line in journal.read_text().splitlines())
    return [(int(words[0]), int(words[1])) for words in lines if len(words) == 4 and words[0].isdigit()]


def longest_step_back(read: Iterable[tuple[int, int]]) -> int:
    """By how many offsets the group went back in a partition at most."""
    following: dict[int, int] = {}
    longest = 0
    for partition, offset in read:
        longest = max(longest, following.get(partition, 0) - offset)
        following[partition] = offset + 1
    return longest


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="ref", default=EARLIER, help="commit that the cluster begins with")
    parser.add_argument("--from-python", type=Path, help="Python that has it already, with all it needs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-hosts-") as made, ExitStack() as stack:
        for folder in map(Path, ("/var/lib/ottla", "/opt/ottla")):  # something to mount on
            if not folder.exists():
                folder.mkdir()
                stack.callback(folder.rmdir)
        print(f"begin with {options.from_python or options.ref}", flush=True)
        try:
            earlier = options.from_python or install(options.ref, Path(made) / "earlier")
        except NotInstalled as error:
            raise SystemExit(str(error)) from None
        machines = Machines(Path(made), earlier, stack)
        stack.callback(machines.kill_all)
        wrong = follow_the_page(machines)
    for line in wrong:
        print(f"WRONG {line}")
    print("ok" if not wrong else f"{len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
