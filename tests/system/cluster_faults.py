"""The faults of a cluster's chaos, drawn from a seed: pure plans. `cluster_chaos.py` performs them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

KILLS: Final = (
    "kill leader",
    "kill controller",
    "kill any",
    "kill two in turn",
    "kill two at once",
    "kill all",
)
PAUSES: Final = ("pause leader", "pause controller", "pause any")
CUTS: Final = ("cut a broker from brokers", "cut one way", "cut a broker from ZooKeeper", "cut a broker off")
ZOOKEEPER: Final = (
    "kill ZooKeeper's leader", "kill a ZooKeeper follower", "pause ZooKeeper's leader",
    "ZooKeeper without quorum",
)  # fmt: skip
OPERATIONS: Final = ("restart in turn", "stop and start one", "elect preferred leaders")
PROFILES: Final = {
    "kills": KILLS,
    "pauses": PAUSES,
    "mixed": (*KILLS, *PAUSES, *CUTS, *ZOOKEEPER, *OPERATIONS),
}
_RARELY: Final = {"kill two at once": 0.4, "kill all": 0.2, "restart in turn": 0.5}
_MOST_ROUNDS_IN_TURN: Final = 5


@dataclass(frozen=True)
class Fault:
    """One fault: its kind, how long the load runs before it, how long it lasts, and a draw for its victim.

    `controller` is the kind of broker that has the controller when it begins; empty for any.
    """

    kind: str
    after_s: float
    lasts_s: float
    draw: int
    controller: str = ""


def plan(
    profile: str,
    rounds: int,
    seed: int,
    *,
    session_s: float,
    can_cut: bool,
    kinds: Sequence[str] = (),
    controllers: Sequence[str] = (),
) -> list[Fault]:
    """Return the faults of a run; equal arguments give equal plans.

    Each of `controllers`, kinds of brokers, has the controller in turn, for at most five rounds.
    """  # fmt: skip
    rng = random.Random(seed)
    possible = [kind for kind in kinds or PROFILES[profile] if can_cut or kind not in CUTS]
    weights = [_RARELY.get(kind, 1.0) for kind in possible]
    faults = [_fault(rng, rng.choices(possible, weights)[0], session_s) for _ in range(rounds)]
    if not controllers:
        return faults
    turn = max(1, min(_MOST_ROUNDS_IN_TURN, rounds // len(controllers)))
    return [
        replace(fault, controller=controllers[number // turn % len(controllers)])
        for number, fault in enumerate(faults)
    ]


def _fault(rng: random.Random, kind: str, session_s: float) -> Fault:
    after_s = rng.uniform(0.2, 1.5)
    if kind in PAUSES or kind.startswith("pause"):
        lasts_s = session_s * rng.choice((0.5, 0.9, 1.2, 1.5, 2.0))
    elif kind in CUTS:
        lasts_s = session_s * rng.choice((0.5, 1.5, 2.0))
    elif kind in ZOOKEEPER:
        lasts_s = rng.uniform(1.0, 2 * session_s)
    else:
        # A broker that is back at once takes its own registration over; after a session others lead.
        lasts_s = rng.choice((0.0, 0.0, rng.uniform(0, session_s), session_s + rng.uniform(0, 2)))
    return Fault(kind, after_s, lasts_s, rng.getrandbits(30))
