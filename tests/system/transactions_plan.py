"""The kills of a run with transactions. The same seed makes the same kills. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CLIENT: Final = "client"
BROKER: Final = "broker"
COORDINATOR: Final = "coordinator"
VICTIMS: Final = (CLIENT, BROKER, COORDINATOR)
_SHARES: Final = (2, 1, 1)


@dataclass(frozen=True)
class Kill:
    """One kill: of a client of a kind, of a broker it writes to, or of the one that coordinates it.

    It comes `after_s` after the kind's last progress, with `amid` once a transaction is open; the victim is
    away for `lasts_s`, and `draw` chooses it among several.
    """

    number: int
    kind: str
    victim: str
    amid: bool
    after_s: float
    lasts_s: float
    draw: int


def plan(kinds: Sequence[str], kills: int, seed: int, victims: Sequence[str] = VICTIMS) -> list[Kill]:
    """Return the kills of a run, in turn for each kind of client; half of a kind's are of the client."""
    rng = random.Random(f"{seed} kills")
    weights = [share for victim, share in zip(VICTIMS, _SHARES, strict=True) if victim in victims]
    chosen = [victim for victim in VICTIMS if victim in victims]
    deck = [victim for victim, weight in zip(chosen, weights, strict=True) for _ in range(weight)]
    decks: dict[str, list[str]] = {kind: [] for kind in kinds}
    planned = []
    for number in range(1, kills + 1):
        kind = kinds[(number - 1) % len(kinds)]
        if not decks[kind]:
            decks[kind] = rng.sample(deck, len(deck))
        planned.append(_kill(rng, number, kind, decks[kind].pop()))
    return planned


def _kill(rng: random.Random, number: int, kind: str, victim: str) -> Kill:
    # A broker that is back at once takes its own registration over; later, others lead.
    longest_s = 1.0 if victim == CLIENT else 9.0
    lasts_s = rng.choice((0.0, rng.uniform(0, longest_s)))
    return Kill(number, kind, victim, rng.random() < 0.7, rng.uniform(0, 1.5), lasts_s, rng.getrandbits(30))
