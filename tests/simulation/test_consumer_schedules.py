"""Schedules of consumer groups keep their promises, and notice each changed rule."""

from __future__ import annotations

import pytest

from simulation.consumer_groups import run_seeds
from simulation.consumer_mutants import CONSUMER_MUTANTS
from simulation.group_schedules import is_noticed

WITHIN = 150
FAILED = {
    7: "a consumer group of classic members assigned nothing after one of them had died",
    28: "work of a group that was replaced meanwhile, or whose records were refused, went on",
    37: "topics of expressions were compared with the count of another broker's topics",
    118: "a write that took too long was answered by an error that ends Java's consumers",
    146: "a group that was upgraded in its rebalance forgot what cooperative members have",
    308: "a coordinator that did not know of all partitions yet failed to assign",
    514: "a removed classic member that joined again counted as one that reads what it has lost",
    532: "a group that was upgraded in its first rebalance was in epoch 0",
    1808: "a removed classic member that joined again counted as one that reads what it has lost",
    1836: "a classic member that joined left expressions without topics",
    1970: "a downgraded group that was upgraded again forgot what members have",
    3610: "a classic member that read a deleted topic did not say that it has it (a fault of the simulation)",
    4238: "an upgraded group forgot what a member reads until it has its new assignment",
    4524: "a commit in a generation that was lost had to be taken (a fault of the simulation)",
    5514: "a downgraded group did not rebalance once its coordinator had moved",
    6035: "a coordinator answered from records that were lost with it",
    7636: "an upgraded group forgot what a member reads until it has its new assignment",
    7765: "an upgraded group forgot what a member reads until it has its new assignment",
}
"""Seeds that have failed, each with what was wrong."""
NOTICED_BY = {
    "any_epoch_may_send_heartbeats": 35,
    "no_past_epoch_may_commit": 7,
    "revocation_has_no_deadline": 15,
    "removed_members_do_not_raise_the_epoch": 82,
    "expressions_are_compared_with_topics_of_another_broker": 816,
    "upgraded_members_have_nothing": 66,
    "classic_members_alone_are_not_asked_to_join": 14,
    "work_goes_on_without_its_records": 8,
    "answers_come_before_replicas_have_what_was_loaded": 6035,
    "upgraded_members_have_what_they_are_assigned_alone": 7636,
}
"""A seed for each mutant that the first two do not notice: it is tried before all others."""


def test_schedules_of_consumer_groups_keep_their_promises() -> None:
    assert run_seeds(range(1, 16)) > 300  # partitions did move


@pytest.mark.parametrize("seed", FAILED)
def test_a_schedule_that_has_failed_keeps_its_promises(seed: int) -> None:
    assert run_seeds(range(seed, seed + 1)) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CONSUMER_MUTANTS)
def test_a_changed_rule_of_consumer_groups_is_noticed(name: str) -> None:
    patches, seed = CONSUMER_MUTANTS[name](), NOTICED_BY.get(name, 1)

    assert any(
        is_noticed(patches, run_seeds, seeds) for seeds in (range(seed, seed + 1), range(1, WITHIN + 1))
    )
