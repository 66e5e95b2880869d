"""Full garbage collections are held off while long requests are served, and never for good."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from ottla.broker.coordinators.testing import in_virtual_time
from ottla.broker.runtime.full_collections import LONGEST_S, QUIET_S, FullCollections
from ottla.broker.runtime.pacing import Turns


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    """Those of a new process, whatever ran before in this one."""
    found = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*found)


@in_virtual_time
async def test_they_are_possible_again_a_second_after_the_last_step() -> None:
    before, collections = gc.get_threshold(), FullCollections()

    for _ in range(5):
        collections.hold_off()
        assert gc.get_threshold()[:2] == before[:2]
        assert gc.get_threshold()[2] > 1_000_000
        await asyncio.sleep(QUIET_S * 0.9)
    await asyncio.sleep(2 * QUIET_S)

    assert gc.get_threshold() == before
    assert not collections.are_held_off


@in_virtual_time
async def test_an_endless_attack_does_not_hold_them_off_for_ever() -> None:
    before, collections, possible = gc.get_threshold(), FullCollections(), 0

    for _ in range(int(4 * LONGEST_S / 0.5)):
        possible += not collections.are_held_off
        collections.hold_off()
        await asyncio.sleep(0.5)
    await asyncio.sleep(LONGEST_S)

    assert possible >= 3
    assert gc.get_threshold() == before


@in_virtual_time
async def test_a_request_that_rests_holds_them_off() -> None:
    before, turns = gc.get_threshold(), Turns(lambda: 0.0)

    await turns.next()

    assert gc.get_threshold()[2] > before[2]
    await asyncio.sleep(2 * QUIET_S)
    assert gc.get_threshold() == before


@in_virtual_time
async def test_two_brokers_of_a_process_do_not_keep_each_others_thresholds() -> None:
    before, first, second = gc.get_threshold(), FullCollections(), FullCollections()

    first.hold_off()
    second.hold_off()
    second.allow()
    assert gc.get_threshold() != before

    first.allow()
    assert gc.get_threshold() == before


@in_virtual_time
async def test_a_broker_that_stops_leaves_the_process_as_it_was() -> None:
    before, turns = gc.get_threshold(), Turns(lambda: 0.0)
    await turns.next()

    turns.close()

    assert gc.get_threshold() == before
