"""Operators' requests to a cluster, under load and with the controller killed in the middle of each.

Four brokers and a ZooKeeper ensemble of three, each in a network namespace where the machine allows it;
confluent-kafka, aiokafka and our producer write with acks=all, and readers follow. In each round one thing is
asked for, and the controller gets SIGKILL right after. Then the request must be finished, or the cluster be
as if it had never been made; in that case it is made again and must be finished. A reassignment, a deletion
and a change of a configuration that were accepted must be finished. At the end all that was acknowledged must
be there, in order, and replicas equal.

python tests/system/cluster_operations.py --rounds 3
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cluster_chaos import PARTITIONS, TOPIC, Clients, Run
from cluster_checks import Acknowledgements, longest_gaps_ms, places_lost
from cluster_nodes import SESSION_MS, NodeFailed
from cluster_of_nodes import Cluster, start
from cluster_requests import CANCELLED, FINISHED, REQUESTS, Request, RequestFailed

WRITERS: Final = ("confluent", "aiokafka", "ottla")
OUTCOME_BOUND_S: Final = 90.0
CALM_S: Final = 1.0
ACCEPTED: Final = "was accepted"


@dataclass(frozen=True)
class Round:
    """One request: whether the controller died before it was over, how it ended, and its window."""

    name: str
    was_in_the_middle: bool
    outcome: str
    answer: str
    took_s: float
    since_ms: float
    until_ms: float


class Operations:
    """Performs rounds on a cluster; what went wrong is in its run."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run = run
        self.cluster = run.cluster
        self.rng = random.Random(seed)
        self.rounds: list[Round] = []

    def perform(self, kind: type[Request]) -> None:
        """Make a request, kill the controller, and wait for the end of both. Raises NodeFailed."""
        request = kind(self.cluster, TOPIC, self.rng, len(self.rounds))
        controller = self._controller()
        since_ms, begun_s = time.time() * 1000, time.monotonic()
        request.prepare(controller)
        asking = Asking(request)
        asking.start()
        if not request.sent.wait(OUTCOME_BOUND_S):
            raise NodeFailed(f"the request was never sent: {asking.answer}")
        time.sleep(self.rng.uniform(0, kind.within_s))
        self.cluster.brokers[controller].kill()
        in_the_middle = asking.is_alive() or not request.is_over()
        request.release()
        time.sleep(self.rng.choice((0.0, SESSION_MS / 1000 + 1)))
        start(self.cluster.brokers[controller])
        asking.join(OUTCOME_BOUND_S)
        outcome = self._ended(request)
        took_s, answer = time.monotonic() - begun_s, asking.answer
        if outcome == CANCELLED and kind.binds and answer == ACCEPTED:
            self.run.wrong.append(f"{kind.name}: it was accepted, and not carried out")
        if outcome == CANCELLED:
            asking = Asking(request)
            asking.start()
            asking.join(OUTCOME_BOUND_S)
            request.release()
            if self._ended(request) != FINISHED:
                raise NodeFailed(f"made again, it does not finish: {asking.answer}")
        self.rounds.append(
            Round(kind.name, in_the_middle, outcome, answer, took_s, since_ms, time.time() * 1000)
        )
        print(
            f"  {kind.name:<24}{'in the middle' if in_the_middle else 'over before':<15}{outcome:<11}"
            f"{took_s:>6.1f} s  {answer}", flush=True,
        )  # fmt: skip
        time.sleep(CALM_S)

    def _controller(self) -> int:
        deadline_s = time.monotonic() + OUTCOME_BOUND_S
        while (found := self.cluster.controller()) not in self.cluster.brokers:
            if time.monotonic() > deadline_s:
                raise NodeFailed("there is no controller")
        assert found is not None
        return found

    def _ended(self, request: Request) -> str:
        """Start brokers that were stopped, wait until all is in sync, and say how the request ended."""
        for broker in self.cluster.brokers.values():
            if not broker.is_running:
                start(broker)
        if complaint := self.cluster.wait_until_healed(TOPIC):
            raise NodeFailed(complaint)
        deadline_s = time.monotonic() + OUTCOME_BOUND_S
        while (outcome := request.outcome()) is None:
            if time.monotonic() > deadline_s:
                raise NodeFailed(f"neither finished nor cancelled after {OUTCOME_BOUND_S:g} s")
            time.sleep(0.2)
        if complaint := self.cluster.wait_until_healed(TOPIC):
            raise NodeFailed(complaint)
        return outcome


class Asking(threading.Thread):
    """Makes the request, and keeps what it was told."""

    def __init__(self, request: Request) -> None:
        super().__init__(daemon=True)
        self._request = request
        self.answer = "no answer"

    def run(self) -> None:
        try:
            self._request.ask()
        except (RequestFailed, NodeFailed) as error:
            self.answer = f"was told {str(error)[:80]}"
        else:
            self.answer = ACCEPTED


def operate(options: argparse.Namespace, folder: Path) -> list[str]:
    """Run all rounds and print the table; return what is wrong."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder, ["ottla"] * 4))
        clients = Clients(folder)
        stack.callback(clients.kill)
        cluster.create(TOPIC, PARTITIONS, min_insync_replicas="2", max_message_bytes="1000000")
        run = Run(cluster, clients)
        if complaint := cluster.wait_until_healed(TOPIC):
            return [complaint]
        cluster.wait_until_served(TOPIC)
        clients.write(cluster.servers, kinds=WRITERS, per_s=options.per_s)
        clients.read(cluster.servers)
        operations = Operations(run, options.seed)
        kinds = [each for each in REQUESTS if not options.only or each.name in options.only]
        for kind in kinds * options.rounds:
            try:
                operations.perform(kind)
            except (NodeFailed, RequestFailed) as error:
                run.wrong.append(f"{kind.name}: {error}")
                break
        for broker in cluster.brokers.values():
            with suppress(OSError):
                broker.resume()
        writers = run.finish()
        report(operations, writers)
    return run.wrong


def report(operations: Operations, writers: Sequence[Acknowledgements]) -> None:
    """Print the rounds by request."""
    gone = {writer.name: places_lost(operations.run.log, writer) for writer in writers}
    print(f"\n{'operation':<24}{'rounds':>7}{'in the middle':>15}{'finished':>10}{'cancelled':>11}"
          f"{'lost':>6}{'median end':>12}{'longest silence':>17}")  # fmt: skip
    for name in dict.fromkeys(each.name for each in operations.rounds):
        rounds = [each for each in operations.rounds if each.name == name]
        ended = [each.outcome for each in rounds]
        lost = sum(_within(each, writer, gone[writer.name]) for each in rounds for writer in writers)
        silence_ms = max(
            max(longest_gaps_ms(writers, each.since_ms, each.until_ms).values(), default=0) for each in rounds
        )
        in_the_middle = sum(each.was_in_the_middle for each in rounds)
        median_s = statistics.median(each.took_s for each in rounds)
        print(f"{name:<24}{len(rounds):>7}{in_the_middle:>15}{ended.count(FINISHED):>10}"
              f"{ended.count(CANCELLED):>11}{lost:>6}{median_s:>10.1f} s{silence_ms:>14,} ms")  # fmt: skip
    acknowledged = sum(len(each.places) + len(each.somewhere) for each in writers)
    print(f"{acknowledged:,} records acknowledged, {sum(map(len, gone.values()))} lost")


def _within(one: Round, writer: Acknowledgements, gone: set[tuple[int, int, int]]) -> int:
    """How many of the lost records were acknowledged in a round, as far as their place was told."""
    return sum(one.since_ms <= writer.at_ms[place] <= one.until_ms for place in gone if place in writer.at_ms)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="of each operation")
    parser.add_argument("--only", action="append", default=[], choices=[each.name for each in REQUESTS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-s", type=int, default=100, help="records a second of each writer")
    parser.add_argument("--keep", type=Path, help="a folder for logs and journals, which stays")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-operations-") as made:
        wrong = operate(options, options.keep or Path(made))
    for line in wrong[:20]:
        print(f"WRONG {line}")
    print("ok" if not wrong else f"{len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
