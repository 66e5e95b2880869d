"""Features of a running broker: what `ottla feature` shows and changes, and what keeps a feature on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ottla.admin import Admin, Change
from ottla.admin.commands.feature import feature
from ottla.broker.cluster.features import NEWEST, SUPPORTED
from ottla.broker.testing import BrokerThread
from ottla.producer import Producer, ProducerConfig
from ottla.protocol.errors import FeatureUpdateFailed, InvalidUpdateVersion

OFF = dict.fromkeys(SUPPORTED, 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path / "data") as running:
        yield running


def ottla_feature(broker: BrokerThread, *arguments: str) -> Result:
    return CliRunner().invoke(feature, [*arguments, "-b", broker.bootstrap_servers])


async def levels_of(admin: Admin) -> dict[str, int]:
    return {level.name: level.level for level in (await admin.features.describe()).features}


def test_the_command_shows_lowers_and_raises_all_levels(broker: BrokerThread) -> None:
    shown = ottla_feature(broker, "describe").output
    assert "group.version            1  0-1            0  -" in shown

    lowered = ottla_feature(broker, "downgrade", "--all")
    assert lowered.output.splitlines() == [f"{name} is 0." for name in sorted(SUPPORTED)]
    described = json.loads(ottla_feature(broker, "describe", "--json").output)
    assert [(row["feature"], row["level"], row["epoch"]) for row in described] == [
        (name, 0, 1) for name in sorted(SUPPORTED)
    ]

    raised = ottla_feature(broker, "upgrade", "--all")
    assert raised.output.splitlines() == [f"{name} is {NEWEST.levels[name]}." for name in sorted(SUPPORTED)]
    assert ottla_feature(broker, "upgrade", "--all").output == "Every feature has this level already.\n"


def test_a_dry_run_changes_nothing(broker: BrokerThread) -> None:
    checked = ottla_feature(broker, "downgrade", "group.version=0", "--dry-run")

    assert checked.output == "group.version can be 0.\n"
    assert json.loads(ottla_feature(broker, "describe", "--json").output)[0]["level"] == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("upgrade",), "give FEATURE=LEVEL or --all"),
        (("downgrade", "--all", "group.version=0"), "give FEATURE=LEVEL or --all"),
        (("upgrade", "group.version"), "must be FEATURE=LEVEL"),
        (("upgrade", "group.version=1.5"), "must be FEATURE=LEVEL"),
    ],
)
def test_arguments_that_name_no_levels_are_refused(arguments: tuple[str, ...], problem: str) -> None:
    refused = CliRunner().invoke(feature, list(arguments))

    assert refused.exit_code == 2
    assert problem in refused.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("upgrade", "group.version=9"), "group.version can be 0 to 1, not 9."),
        (
            ("upgrade", "shar.version=1"),
            "unknown feature 'shar.version': did you mean 'share.version'? "
            "The cluster has group.version, share.version, streams.version, transaction.version.",
        ),
        (
            ("upgrade", "share=1"),
            "unknown feature 'share': did you mean 'share.version'? "
            "The cluster has group.version, share.version, streams.version, transaction.version.",
        ),
        (
            ("upgrade", "share.version=0"),
            "share.version is 2, and 0 is lower: use `ottla feature downgrade share.version=0`.",
        ),
    ],
)
def test_a_level_that_cannot_be_had_is_refused_with_what_to_write(
    arguments: tuple[str, ...], problem: str, broker: BrokerThread
) -> None:
    refused = ottla_feature(broker, *arguments)

    assert (refused.exit_code, refused.output) == (1, f"Error: {problem}\n")


def test_a_level_above_the_present_one_is_no_downgrade(broker: BrokerThread) -> None:
    ottla_feature(broker, "downgrade", "share.version=0")

    refused = ottla_feature(broker, "downgrade", "share.version=1")

    assert refused.output == (
        "Error: share.version is 0, and 1 is higher: use `ottla feature upgrade share.version=1`.\n"
    )


async def test_a_level_that_cannot_be_had_is_refused_by_the_controller(broker: BrokerThread) -> None:
    async with Admin(broker.bootstrap_servers) as admin:
        with pytest.raises(InvalidUpdateVersion, match="only supports versions 0-1"):
            await admin.features.update({"group.version": 9})
        with pytest.raises(InvalidUpdateVersion, match="ask for a safe or an unsafe one"):
            await admin.features.update({"share.version": 0})


async def test_a_safe_downgrade_of_transactions_says_which_of_them_have_to_end(broker: BrokerThread) -> None:
    servers = broker.bootstrap_servers
    async with Admin(servers) as admin:
        await admin.topics.create("orders")
        async with Producer(servers, ProducerConfig(transactional_id="billing-1")) as producer:
            async with producer.transaction():
                await producer.send("orders", b"paid")
                await producer.flush()
                with pytest.raises(FeatureUpdateFailed, match=r"billing-1 are open\. End them first"):
                    await admin.features.update({"transaction.version": 0}, Change.SAFE_DOWNGRADE)
                refused = await asyncio.to_thread(ottla_feature, broker, "downgrade", "transaction.version=0")
                assert refused.output == (
                    "Error: Feature transaction.version is in use: the transactions of billing-1 are open. "
                    "End them first, or add --unsafe.\n"
                )

                await admin.features.update({"group.version": 0}, Change.SAFE_DOWNGRADE)
                await admin.features.update({"transaction.version": 0}, Change.UNSAFE_DOWNGRADE)
        await admin.features.update(OFF, Change.SAFE_DOWNGRADE)


async def test_levels_outlive_a_restart(broker: BrokerThread) -> None:
    async with Admin(broker.bootstrap_servers) as admin:
        await admin.features.update(OFF, Change.SAFE_DOWNGRADE)

    broker.restart()

    async with Admin(broker.bootstrap_servers) as admin:
        assert await levels_of(admin) == OFF
