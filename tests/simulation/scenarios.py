"""Schedules made by hand, for changed rules that take more coincidences than seeds bring about.

The seed still decides delays, clients and which broker is the controller: where that matters, a scenario
shows what it is made for with some seeds only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from simulation.faults import Fault

SCENARIOS: Final[Mapping[str, Sequence[Fault]]] = {
    # While broker 1 is out of the ISRs, the states get another version than the leaders know.
    "state rewritten": [
        Fault(2.0, "crash", 1, 0, 4.0),
        Fault(5.7, "rewrite states", 0, 0, 0.0),
    ],
    # The disks fill up one after the other, then two of them at once; the last one leads without writing.
    "full disks": [
        Fault(2.0, "fill disk", 0, 0, 9.0),
        Fault(4.0, "fill disk", 1, 0, 9.0),
        Fault(6.0, "fill disk", 2, 0, 3.0),
        Fault(15.0, "fill disk", 1, 0, 3.0),
        Fault(15.0, "fill disk", 2, 0, 3.0),
    ],
    # Broker 1 deletes its replica, gets it back, and then hears once more that it has to delete it.
    "late stop": [
        Fault(3.0, "delay stop replica", 1, 0, 7.0),
        Fault(3.1, "reassign", 0, 2, 0.0),
        Fault(7.0, "reassign", 0, 1, 0.0),
    ],
    # Broker 1 joins the ISR of `moved`; the leader hears neither that, nor from broker 1 any more.
    "deaf after a proposal": [
        Fault(2.0, "crash", 1, 0, 4.0),
        Fault(5.5, "deafen at alter partition", 0, 0, 6.0),
    ],
    # Broker 1 comes back with a replica of a topic that was deleted meanwhile.
    "deletion while one is away": [
        Fault(2.0, "create topic", 0, 0, 0.0),
        Fault(5.0, "crash", 1, 0, 4.0),
        Fault(5.2, "delete topic", 0, 0, 0.0),
    ],
    # Proposed ISRs arrive when the topic has been deleted.
    "late proposal": [
        Fault(2.0, "create topic", 0, 0, 0.0),
        Fault(4.0, "delay alter partition", 0, 0, 8.0),
        Fault(4.1, "crash", 1, 0, 4.0),
        Fault(6.5, "delete topic", 0, 0, 0.0),
    ],
    # Broker 1 comes back and joins the ISRs; it has left them again when a copy of the proposal arrives.
    "late expansion": [
        Fault(2.0, "crash", 1, 0, 4.0),
        Fault(5.7, "delay alter partition", 0, 0, 7.0),
        Fault(9.0, "deafen", 1, 0, 6.0),
    ],
    # A replica is removed while its broker is away; its topic is deleted, and created again with that broker.
    "another topic of the same name": [
        Fault(3.0, "crash", 1, 0, 4.0),
        Fault(3.2, "reassign", 0, 2, 0.0),
        Fault(9.0, "delete moved", 0, 0, 0.0),
        Fault(11.0, "create moved", 0, 0, 0.0),
    ],
    # Brokers lose their sessions while they look who the controller is.
    "sessions lost in an election": [
        Fault(5.0, "delete controller", 0, 0, 0.0),
        *(Fault(5.004, "cut zookeeper", broker, 0, 6.0) for broker in range(3)),
    ],
    # Broker 1 leads alone, below min.insync.replicas, with the watermark that it had as a follower.
    "stale watermark": [
        Fault(2.0, "config", 1, 0, 0.0),
        Fault(4.0, "crash", 2, 0, 4.0),
        Fault(6.6, "crash", 0, 0, 4.0),
        Fault(8.5, "deafen", 2, 0, 6.0),
    ],
    # Broker 0 acknowledges what broker 2 lacks, and dies before broker 1, far away, hears of the watermark.
    # Broker 1 leads, below min.insync.replicas, with a watermark that broker 2 has when it comes back.
    "between watermark and epoch": [
        Fault(2.0, "config", 1, 0, 0.0),
        Fault(2.5, "slow", 0, 1, 8.0),
        Fault(3.0, "crash", 2, 0, 4.0),
        Fault(3.5, "crash after alter partition", 0, 0, 4.0),
        Fault(6.5, "slow", 1, 2, 6.0),
    ],
    # Broker 1, far away, gets two records in one answer, and broker 0 the first of them, which is committed.
    # Broker 2 dies before broker 1 hears of that. Broker 0 leads, and broker 1 has a record too many. Twice.
    "two records in one answer": [
        Fault(4.5, "slow", 1, 2, 5.0),
        Fault(6.0, "deafen", 0, 0, 4.0),
        Fault(6.7, "crash", 2, 0, 4.0),
        Fault(13.0, "preferred", 0, 0, 0.0),
        Fault(14.5, "slow", 1, 2, 5.0),
        Fault(16.0, "deafen", 0, 0, 3.5),
        Fault(16.7, "crash", 2, 0, 3.0),
    ],
    # Broker 1 leads and appends what nobody has. Broker 0, elected meanwhile, does the same in the next
    # epoch, and dies. In the epoch after that, broker 1 still has the records of the first.
    "two epochs apart": [
        Fault(2.0, "crash", 0, 1, 4.0),
        Fault(9.0, "deafen", 1, 0, 2.5),
        Fault(9.7, "preferred", 0, 0, 0.0),
        Fault(10.6, "crash", 0, 0, 4.0),
    ],
    # Markers arrive when another coordinator has sent them once more, and the next transaction is open.
    "late markers": [
        Fault(2.5, "crash after late markers", 0, 0, 5.5),
        Fault(10.5, "crash after late markers", 0, 0, 5.5),
    ],
    # Brokers stop while transactions are open in their logs, and lead again when those are aborted.
    "stopped in transactions": [
        fault
        for number in range(6)
        for fault in (
            Fault(2.0 + 3.0 * number, "shutdown", 1 + number % 2, 0, 0.0),
            Fault(4.7 + 3.0 * number, "preferred", 0, 0, 0.0),
        )
    ],
    # Coordinators of groups lose their sessions, have successors, and are asked for offsets as before.
    "replaced unnoticed": [
        Fault(2.0 + 6.5 * number, "cut zookeeper", broker, 0, 6.0) for number, broker in enumerate((2, 0, 1))
    ],
}
OF_TRANSACTIONS: Final = frozenset({"late markers", "stopped in transactions", "replaced unnoticed"})
"""Scenarios that show something only with clients of transactions."""
