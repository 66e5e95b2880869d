"""Run schedules: `python -m simulation --seeds 1:10000`, from the folder `tests` or with it on the path."""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time

from simulation import controller_mutants, follower_mutants, replica_mutants
from simulation.mutants import MUTANTS, applied
from simulation.schedule import Outcome, run_schedule
from simulation.shrinking import shrink

REPORT_EVERY_S = 10.0
WITH_MUTANTS = (controller_mutants, follower_mutants, replica_mutants)


def main() -> int:
    """Run what the command line asks for; 1 after a violation."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", default="1:500", help="first and last seed, as 1:500")
    parser.add_argument("--trace", action="store_true", help="print every trace, not only its hash")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="change one rule of the product")
    parser.add_argument("--log", action="store_true", help="print what the brokers log")
    parser.add_argument("--without-shrinking", action="store_true", help="do not look for fewer faults")
    given = parser.parse_args()
    if given.log:
        logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    else:
        logging.disable(logging.CRITICAL)
    first, _, last = given.seeds.partition(":")
    with applied(given.mutant):
        return _run(int(first), int(last or first), trace=given.trace, shrinks=not given.without_shrinking)


def _run(first: int, last: int, *, trace: bool, shrinks: bool) -> int:
    began_s = reported_s = time.monotonic()
    acks = events = 0
    for seed in range(first, last + 1):
        outcome = run_schedule(seed)
        if seed == first:
            gc.freeze()  # what is there now stays: the collection after each schedule need not look at it
        acks, events = acks + outcome.acks, events + outcome.events
        if trace:
            print(*outcome.trace, f"seed {seed}: trace {outcome.trace_hash}", sep="\n")
        if outcome.violation is not None:
            _show(outcome, shrinks=shrinks)
            return 1
        if time.monotonic() - reported_s > REPORT_EVERY_S or seed == last:
            reported_s = time.monotonic()
            rate = (seed - first + 1) * 60 / (reported_s - began_s)
            print(
                f"seeds {first}:{seed} without a violation, {rate:.0f} schedules a minute, "
                f"{acks} records acknowledged, {events} events; next: --seeds {seed + 1}:{last}",
                flush=True,
            )
    return 0


def _show(outcome: Outcome, *, shrinks: bool) -> None:
    print(f"seed {outcome.seed}: {outcome.violation}")
    print(f"trace {outcome.trace_hash}; the same again: --seeds {outcome.seed} --trace", flush=True)
    if not shrinks:
        print(*outcome.trace[-60:], sep="\n")
        return
    short = shrink(outcome)
    print(f"with {len(short.faults)} of {len(outcome.faults)} faults:", *short.trace, sep="\n")


if __name__ == "__main__":
    sys.exit(main())
