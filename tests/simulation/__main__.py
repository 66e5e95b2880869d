"""Run schedules: `python -m simulation --seeds 1:10000`, from the folder `tests` or with it on the path."""

from __future__ import annotations

import argparse
import hashlib
import logging
import multiprocessing
import os
import sys
import time
from functools import partial
from multiprocessing.pool import IMapIterator
from typing import Final

from simulation import controller_mutants, follower_mutants, replica_mutants, transaction_mutants
from simulation.mutants import MUTANTS, applied
from simulation.scenarios import SCENARIOS
from simulation.schedule import Outcome, run_schedule
from simulation.shrinking import shrink

REPORT_EVERY_S: Final = 10.0
IN_A_PROCESS: Final = 10
"""Schedules of one process: what they leave behind goes with it, which is faster than to look for it."""
PATIENCE_S: Final = 600.0
"""A schedule that takes longer has a process that was killed, or a loop without end."""
_HASH_SEED: Final = "PYTHONHASHSEED"
WITH_MUTANTS = (controller_mutants, follower_mutants, replica_mutants, transaction_mutants)


def main() -> int:
    """Run what the command line asks for; 1 after a violation."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", default="1:500", help="first and last seed, as 1:500")
    parser.add_argument("--processes", type=int, default=1, help="how many schedules run at a time")
    parser.add_argument("--trace", action="store_true", help="print every trace, not only its hash")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="change one rule of the product")
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), help="faults made by hand")
    parser.add_argument("--transactions", action="store_true", help="with clients of transactions")
    parser.add_argument("--full-disks", action="store_true", help="disks are full now and then, too")
    parser.add_argument("--log", action="store_true", help="print what the brokers log")
    parser.add_argument("--without-shrinking", action="store_true", help="do not look for fewer faults")
    given = parser.parse_args()
    if given.log:
        logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    else:
        logging.disable(logging.WARNING)
    first, _, last = given.seeds.partition(":")
    seeds = range(int(first), int(last or first) + 1)
    faults = SCENARIOS[given.scenario] if given.scenario is not None else None
    transactions = given.transactions or (given.mutant is not None and MUTANTS[given.mutant].transactions)
    run = partial(
        run_schedule,
        faults=faults,
        transactions=transactions,
        full_disks=given.full_disks,
        leaves_garbage=True,
    )
    fork = multiprocessing.get_context("fork")
    with applied(given.mutant), fork.Pool(given.processes, maxtasksperchild=IN_A_PROCESS) as pool:
        failed = _report(pool.imap(run, seeds), seeds, shows_traces=given.trace)
        if failed is None:
            return 0
        pool.terminate()
        _show(failed, shrinks=not given.without_shrinking, transactions=transactions)
        return 1


def _report(outcomes: IMapIterator[Outcome], seeds: range, *, shows_traces: bool) -> Outcome | None:
    """Print what has run; return the first schedule with a violation."""
    began_s = reported_s = time.monotonic()
    acks = events = committed = 0
    traces = hashlib.sha256()
    for seed in seeds:
        outcome = outcomes.next(PATIENCE_S)
        acks, events = acks + outcome.acks, events + outcome.events
        committed += outcome.transactions
        traces.update(outcome.trace_hash.encode())
        if shows_traces:
            print(*outcome.trace, f"seed {seed}: trace {outcome.trace_hash}", sep="\n")
        if outcome.violation is not None:
            return outcome
        if time.monotonic() - reported_s > REPORT_EVERY_S or seed == seeds[-1]:
            reported_s = time.monotonic()
            rate = (seed - seeds[0] + 1) * 60 / (reported_s - began_s)
            print(
                f"seeds {seeds[0]}:{seed} without a violation, {rate:.0f} schedules a minute, "
                f"{acks} records acknowledged, {committed} transactions, {events} events, "
                f"traces {traces.hexdigest()[:16]}; next: --seeds {seed + 1}:{seeds[-1]}",
                flush=True,
            )
    return None


def _show(outcome: Outcome, *, shrinks: bool, transactions: bool) -> None:
    print(f"seed {outcome.seed}: {outcome.violation}")
    again = f"--seeds {outcome.seed} --trace, with PYTHONHASHSEED={os.environ[_HASH_SEED]}"
    print(f"trace {outcome.trace_hash}; the same again: {again}", flush=True)
    if not shrinks:
        print(*outcome.trace[-60:], sep="\n")
        return
    short = shrink(outcome, transactions=transactions)
    print(f"with {len(short.faults)} of {len(outcome.faults)} faults:", *short.trace, sep="\n")


def _fix_hash_seed() -> None:
    """Start anew with a hash seed: the order of a set of strings depends on it, and so may a schedule."""
    if not os.environ.get(_HASH_SEED, "").isdecimal():
        os.execve(sys.executable, sys.orig_argv, {**os.environ, _HASH_SEED: "0"})


if __name__ == "__main__":
    _fix_hash_seed()
    sys.exit(main())
