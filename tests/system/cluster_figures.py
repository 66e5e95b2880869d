"""Figures of a cluster apart from copying records, measured on real processes, one for each line.

Each line is a test, which says as its property `figure` what it has measured and fails when that is not good
enough; here they run one after the other, and the table is printed.

python tests/system/cluster_figures.py --quorum-losses 20
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).resolve().parents[2]
BOUND_S: Final = 3_600.0


@dataclass(frozen=True)
class Line:
    """A line of the table: what is measured, and the test that does it."""

    name: str
    test: str


LINES: Final = (
    Line("throttled reassignment",
         "tests/system/test_throttled_reassignment.py"
         "::test_a_throttled_reassignment_takes_its_time_and_verify_ends_the_throttle"),
    Line("follower reads by rack",
         "tests/clients/test_follower_reads.py::test_a_consumer_is_served_by_the_follower_in_its_rack"),
    Line("failed log directory",
         "tests/system/test_log_directories.py::test_another_replica_leads_when_a_log_directory_fails"),
    Line("AlterReplicaLogDirs",
         "tests/system/test_log_directories.py"
         "::test_replicas_move_between_directories_under_load_and_over_a_kill"),
    Line("killed group coordinator",
         "tests/system/test_coordinator_moves.py::test_a_killed_coordinator_costs_no_commit_and_no_member"),
    Line("watchdog",
         "tests/system/test_zookeeper_away.py"
         "::test_a_broker_with_a_blocked_event_loop_says_where_and_ends"),
    Line("cluster over ssh",
         "packages/tools/tests/test_cluster_of_hosts.py"
         "::test_a_cluster_over_hosts_starts_spreads_replicas_and_stops"),
    Line("offsets exported, imported",
         "tests/interop/test_zookeeper_consumer.py::test_kafkas_tools_and_ours_say_the_same"),
    Line("losses of the quorum",
         "tests/system/test_zookeeper_away.py::test_losses_of_the_quorum_for_25_s_cost_no_session"),
)  # fmt: skip


def measure(line: Line, report: Path, quorum_losses: int) -> tuple[bool, str]:
    """Run a test; return whether it passed, and its figure or the end of what it says."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-o", "junit_family=xunit1",
        f"--junitxml={report}", str(ROOT / line.test),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"QUORUM_LOSSES": str(quorum_losses)}, capture_output=True,
        text=True, timeout=BOUND_S, check=False,
    )  # fmt: skip
    figure = figure_in(report) if report.exists() else None
    if done.returncode == 0 and figure is not None:
        return True, figure
    return False, (done.stdout.strip().splitlines() or [f"status {done.returncode}"])[-1]


def figure_in(report: Path) -> str | None:
    """Return the figure of the test in a JUnit report."""
    found = ElementTree.parse(report).find(".//property[@name='figure']")
    return None if found is None else found.get("value")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quorum-losses", type=int, default=20, help="of 25 s each")
    parser.add_argument("--only", action="append", default=[], choices=[each.name for each in LINES])
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ottla-figures-") as folder:
        for number, line in enumerate(LINES):
            if options.only and line.name not in options.only:
                continue
            is_good, figure = measure(line, Path(folder) / f"{number}.xml", options.quorum_losses)
            failed += not is_good
            print(f"{line.name:<28}{'ok' if is_good else 'FAILED':<8}{figure}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
