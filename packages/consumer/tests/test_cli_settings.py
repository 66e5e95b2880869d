"""Settings of the consumer that `ottla consume -X` takes."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from ottla.client.commands import cluster_options, load_config
from ottla.client.config import ClientConfig
from ottla.consumer.cli import _config, own_settings


def run(*options: str) -> str:
    @click.command()
    @cluster_options
    def command(bootstrap_server: str, properties: str | None) -> None:
        own = own_settings()
        click.echo(f"{own} {load_config(properties).client_id}")

    done = CliRunner().invoke(command, options)
    return done.output.strip()


def test_settings_of_the_consumer_are_told_from_those_of_connections() -> None:
    given = run("-X", "group.protocol=consumer", "-X", "client.id=desk", "-X", "fetch_max_wait_ms=9")

    assert given == "{'group.protocol': 'consumer', 'fetch_max_wait_ms': '9'} desk"


def test_an_unknown_setting_is_still_refused() -> None:
    assert "there is no setting 'group.protokol'" in run("-X", "group.protokol=consumer")


@pytest.mark.parametrize("own", [{"group.protocol": "consumer", "max.poll.records": "7"}, {}])
def test_they_are_added_to_those_of_the_options(own: dict[str, str]) -> None:
    config = _config("g", True, "read_committed", own, ClientConfig(client_id="desk"))

    assert (config.group_id, config.auto_offset_reset, config.isolation_level) == (
        "g", "earliest", "read_committed",
    )  # fmt: skip
    assert (config.client.client_id, config.enable_auto_commit) == ("desk", False)
    assert (config.group_protocol, config.max_poll_records) == (("consumer", 7) if own else ("classic", None))
