"""A cluster of `ottla cluster start` under load, of which one part after another is killed.

Three brokers and three of Apache's ZooKeeper servers; an idempotent confluent-kafka producer writes with
acks=all into a topic with three replicas and min.insync.replicas=2. After each fault the cluster must serve
again without the part, describe itself, and be whole again once the part is back. Printed is for how long
each partition acknowledged nothing. At the end all that was acknowledged must be there, in order, and
replicas equal.

python tests/system/cluster_acceptance.py
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from acceptance_cluster import AcceptanceCluster
from chaos_log import read_back
from cluster_chaos import PARTITIONS, TOPIC, Clients
from cluster_checks import acknowledgements, differing, disordered, longest_gaps_ms, lost
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

START_BOUND_S: Final = 10.0
AFTER_SESSION_S: Final = 3.0
SHUTDOWN_BOUND_S: Final = 1.0
CALM_S: Final = 1.0


@dataclass(frozen=True)
class Step:
    """A performed fault, its window, and for how long partitions may be silent; None for no bound."""

    name: str
    since_ms: float
    until_ms: float
    bound_s: float | None
    served_after_s: float


@dataclass
class Acceptance:
    """The steps, what they have shown, and what was wrong."""

    cluster: AcceptanceCluster
    slack_s: float
    steps: list[Step] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def perform(
        self, name: str, fault: Callable[[], Collection[int]], bound_s: float | None = None,
        meanwhile: Callable[[Collection[int]], None] | None = None,
    ) -> None:  # fmt: skip
        """Do what a fault does, which returns the brokers it takes away; describe what is left, and heal."""
        self.cluster.elect_preferred_leaders()
        time.sleep(CALM_S)
        since_s = time.time()
        away = fault()
        served_s = self.cluster.wait_until_served_without(away) - since_s
        print(f"\n{name}: without {sorted(away) or 'it'} all partitions have leaders after {served_s:.1f} s")
        print(self.cluster.described(away), flush=True)
        if meanwhile is not None:
            meanwhile(away)
        # A client notices a little later than the cluster, and its silence belongs to this step.
        time.sleep(CALM_S)
        self.cluster.start()
        self.cluster.wait_until_whole()
        time.sleep(CALM_S)
        self.steps.append(Step(name, since_s * 1000, time.time() * 1000, bound_s, served_s))

    def refuses_and_reads(self, away: Collection[int]) -> None:
        """With one broker left: acks=all is NOT_ENOUGH_REPLICAS, and every partition can be read."""
        servers = self.cluster.layout.bootstrap_servers
        refused = [_error_of_write(servers, partition) for partition in range(PARTITIONS)]
        if set(refused) != {"NOT_ENOUGH_REPLICAS"}:
            self.wrong.append(f"with {sorted(away)} away acks=all got {refused}, not NOT_ENOUGH_REPLICAS")
        read = [_records_to_read(servers, partition) for partition in range(PARTITIONS)]
        if not all(read):
            self.wrong.append(f"with {sorted(away)} away the partitions gave {read} records")
        print(f"acks=all, by partition: {', '.join(refused)}\nrecords read, by partition: {read}", flush=True)

    def report(self, clients: Clients) -> None:
        """Print the silence of each partition in each step, and note what exceeds its bound."""
        writer = acknowledgements("writer-confluent", clients.journal("writer-confluent"))
        partitions = "".join(f"{f'{TOPIC}-{each}':>10}" for each in range(PARTITIONS))
        print(f"\n{'unavailable, ms':<28}{partitions}{'bound':>8}{'led again':>11}")
        for step in self.steps:
            gaps = longest_gaps_ms([writer], step.since_ms, step.until_ms)
            cells = "".join(f"{gaps[each]:>10,}" for each in range(PARTITIONS))
            bound = "-" if step.bound_s is None else f"{step.bound_s * 1000:,.0f}"
            print(f"{step.name:<28}{cells}{bound:>8}{step.served_after_s:>9.1f} s")
            if step.bound_s is not None and max(gaps.values()) > (step.bound_s + self.slack_s) * 1000:
                self.wrong.append(f"{step.name}: {max(gaps.values())} ms without an acknowledgement")
        self.wrong += writer.wrong[:3] + ([] if writer.ended else ["records stayed without acknowledgement"])
        log = read_back(self.cluster.layout.bootstrap_servers, TOPIC, PARTITIONS)
        self.wrong += lost(log, writer) + disordered(log, writer.name)
        print(f"{len(writer.places):,} records acknowledged, {sum(map(len, log.values())):,} in the log")


def _error_of_write(servers: str, partition: int) -> str:
    """The name of the error of one write with acks=all that is not tried again."""
    outcome: list[Any] = []
    producer = Producer(
        {"bootstrap.servers": servers, "acks": "all", "retries": 0, "message.timeout.ms": 20_000,
         "log_level": 0}
    )  # fmt: skip
    # Away brokers fail a record that waits for their address; that says nothing of this partition's leader.
    for _ in range(5):
        producer.produce(
            TOPIC, b"refused 0 ", partition=partition, on_delivery=lambda e, _: outcome.append(e)
        )
        producer.flush(25)
        if outcome and (outcome[-1] is None or outcome[-1].code() != KafkaError._TRANSPORT):
            break
    return "no error" if outcome[-1] is None else str(outcome[-1].name())


def _records_to_read(servers: str, partition: int) -> int:
    """How many records a new consumer gets of a partition from its start to its end."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "reads", "enable.auto.commit": False,
         "enable.partition.eof": True, "log_level": 0}
    )  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING)])
    found, deadline_s = 0, time.monotonic() + 30
    try:
        while time.monotonic() < deadline_s:
            for message in consumer.consume(1_000, timeout=1):
                if message.error() is None:
                    found += 1
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return found
    finally:
        consumer.close()
    return 0


def accept(folder: Path, *, session_s: float, slack_s: float) -> list[str]:
    """Run all steps; return what was wrong."""
    with ExitStack() as stack:
        cluster = stack.enter_context(AcceptanceCluster(folder / "cluster", TOPIC, session_s))
        took_s = cluster.start()
        print(f"ottla cluster start --brokers 3: {took_s:.1f} s")
        cluster.create(PARTITIONS)
        clients = Clients(folder)
        stack.callback(clients.kill)
        clients.write(cluster.layout.bootstrap_servers, kinds=["confluent"], per_s=200)
        print(cluster.described(()))
        run = Acceptance(cluster, slack_s)
        if took_s > START_BOUND_S + slack_s:
            run.wrong.append(f"the cluster took {took_s:.1f} s to start")
        _all_steps(run)
        run.wrong += clients.stop("writer")
        run.report(clients)
        cluster.wait_until_whole()
        cluster.stop()
        homes = {f"broker {each}": cluster.directory / f"broker-{each}" for each in cluster.layout.broker_ids}
        run.wrong += differing(homes, TOPIC, PARTITIONS)
    return run.wrong


def _all_steps(run: Acceptance) -> None:
    cluster, crash_s = run.cluster, run.cluster.session_s + AFTER_SESSION_S
    run.perform("SIGKILL of broker 1", lambda: cluster.kill(1), crash_s)
    run.perform("then SIGKILL of broker 2", lambda: cluster.kill(2), crash_s)
    run.perform("then SIGKILL of broker 3", lambda: cluster.kill(3), crash_s)
    run.perform("SIGKILL of the controller", lambda: cluster.kill(cluster.controller()), crash_s)
    run.perform("SIGKILL of ZooKeeper's leader", cluster.kill_zookeeper_leader, crash_s)
    controller = cluster.controller()
    other = next(each for each in cluster.layout.broker_ids if each != controller)
    run.perform("controlled shutdown", lambda: cluster.shut_down(other), SHUTDOWN_BOUND_S)
    run.perform("shutdown of the controller", lambda: cluster.shut_down(controller), SHUTDOWN_BOUND_S)
    run.perform("SIGKILL of two at once", lambda: cluster.kill(2, 3), None, run.refuses_and_reads)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slack-s", type=float, default=0.0, help="added to each bound, for a busy machine")
    parser.add_argument("--session-s", type=float, default=6.0, help="of the brokers with ZooKeeper")
    parser.add_argument("--keep", type=Path, help="a folder for data and journals, which stays")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-acceptance-") as made:
        wrong = accept(options.keep or Path(made), session_s=options.session_s, slack_s=options.slack_s)
    for line in wrong[:20]:
        print(f"WRONG {line}")
    print("ok" if not wrong else f"{len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
