"""librdkafka's own tests against three brokers, with consumers of either group protocol.

The tests come with an npm package and are compiled once (npm, make and g++). Each runs in a process of its
own; its log is kept where `--logs` says. Tests that need logins skip themselves; those that run Kafka's
scripts get them from Maven (Java), and are left out without it.

python tests/system/librdkafka_suite.py --protocol consumer
python tests/system/librdkafka_suite.py --protocol classic 0113 0118 --logs /tmp/logs
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pytest

from ottla.broker.testing import BrokerCluster
from peers.kafka_scripts import kafka_scripts
from peers.librdkafka import Outcome, compiled_tests, names, run
from peers.maven import missing_tools

SETTINGS: Final = {
    "num.partitions": "4",
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "3000",
    "group.min.session.timeout.ms": "6000",
    "group.share.min.record.lock.duration.ms": "1000",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""The brokers that librdkafka's tests expect, by its scenario `default`; some write access rules.

0113 counts assignments: members of a classic group that come together are to be in its first generation.
"""
LEFT_OUT: Final = {
    "0038": "measures speed",
    "0055": "measures speed",
    "8000": "waits for a person",
    "8001": "needs a person",
}
RACES: Final = {
    "0118": "its second consumer must not join before its first one",
    "0174": "wants 20,000 single writes in two minutes, which no broker stores on a busy machine",
    "0180": "a share consumer never closes when an assignment, whose topic it asks for, comes as it closes: "
    "test_fetch_max_bytes_zero closes with its second heartbeat (seen with Apache Kafka 4.4.0 as well)",
}
"""The tests that may fail by themselves, and why; each has passed."""
OF_SCRIPTS: Final = ("0052", "0077", "0109", "0115", "0119")
"""The tests that run kafka-topics.sh or kafka-acls.sh."""


@contextmanager
def brokers(folder: Path) -> Iterator[str]:
    """Three brokers, each in a rack of its own."""
    racks = {node: {"broker.rack": f"RACK{node}"} for node in (1, 2, 3)}
    with BrokerCluster(folder / "cluster", SETTINGS, of_broker=racks) as cluster:
        yield cluster.bootstrap_servers


def main(arguments: list[str] | None = None) -> int:
    """Run the tests, print a line for each, and return 1 where one failed."""
    options = _options(arguments)
    try:
        tests = compiled_tests()
    except pytest.skip.Exception as reason:
        print(reason, file=sys.stderr)
        return 2
    lacking = missing_tools()
    left_out = LEFT_OUT | (dict.fromkeys(OF_SCRIPTS, lacking) if lacking else {})
    wanted = options.tests or [name for name in names(tests) if name not in left_out]
    logs = options.logs or Path(tempfile.mkdtemp(prefix="ottla-librdkafka-"))
    if not lacking:
        kafka_scripts(logs / "kafka" / "bin")
    with brokers(logs) as servers, ThreadPoolExecutor(options.parallel) as pool:
        one = partial(run, tests, servers=servers, protocol=options.protocol, logs=logs, kafka=logs / "kafka")
        outcomes = [_printed(outcome) for outcome in pool.map(one, wanted)]
    counts = Counter(outcome.verdict for outcome in outcomes)
    failed = counts["failed"] + counts["timeout"]
    if not options.tests:
        print("Left out:", ", ".join(f"{test} {why}" for test, why in sorted(left_out.items())))
    print(
        f"{options.protocol}: {counts['passed']} passed, {failed} failed, {counts['skipped']} skipped; {logs}"
    )
    return 1 if failed else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tests", nargs="*", metavar="TEST", help="four digits; all without one")
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="consumer")
    parser.add_argument("--parallel", type=int, default=2, help="how many run at a time")
    parser.add_argument("--logs", type=Path, help="a folder for a log of each test")
    return parser.parse_args(arguments)


def _printed(outcome: Outcome) -> Outcome:
    why = "" if outcome.verdict == "passed" else "; ".join(outcome.complaints()[:2])
    if outcome.verdict in ("failed", "timeout") and outcome.test in RACES:
        why = f"{why} (may be a race: {RACES[outcome.test]})"
    print(f"{outcome.test}  {outcome.verdict:<8} {outcome.seconds:7.1f} s  {why}".rstrip(), flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
