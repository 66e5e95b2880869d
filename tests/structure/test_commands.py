"""Every command of `ottla` that connects takes a profile; all show examples, and fit into a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import entry_points

import click
import pytest

READS_DECLARATIONS = {"pipeline run", "pipeline check", "pipeline status", "pipeline list"}
"""They connect to the brokers of the files that they are given."""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield all commands by what one types after `ottla`, without the groups around them."""
    for entry in entry_points(group="ottla.commands"):
        yield from _within(entry.name, entry.load())


def _within(words: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from _within(f"{words} {name}", inner)


def groups() -> Iterator[tuple[str, click.Group]]:
    """Yield all groups of commands by what one types after `ottla`."""
    for entry in entry_points(group="ottla.commands"):
        yield from _groups_within(entry.name, entry.load())


def _groups_within(words: str, command: click.Command) -> Iterator[tuple[str, click.Group]]:
    if not isinstance(command, click.Group):
        return
    yield words, command
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from _groups_within(f"{words} {name}", inner)


@pytest.mark.parametrize(("words", "group"), [pytest.param(*found, id=found[0]) for found in groups()])
def test_a_group_lists_each_command_with_its_whole_first_sentence_in_80_columns(
    words: str, group: click.Group
) -> None:
    page = group.get_help(click.Context(group, info_name=f"ottla {words}", max_content_width=80))

    _, _, listed = page.partition("Commands:\n")
    assert [line for line in listed.splitlines() if line.endswith("...")] == []
    assert listed


@pytest.mark.parametrize(("words", "command"), [pytest.param(*found, id=found[0]) for found in commands()])
def test_a_command_that_connects_takes_a_profile_and_each_shows_examples(
    words: str, command: click.Command
) -> None:
    options = {option for parameter in command.params for option in parameter.opts}
    text = f"{command.help}{command.epilog}"

    asks_brokers = options & {"--bootstrap-server", "--command-config"} and not words.startswith("zookeeper ")
    if asks_brokers or words in READS_DECLARATIONS:
        assert "--profile" in options or words == "profile add"
    assert re.search(rf"\bottla [\w -]*\b{words.rpartition(' ')[2]}\b", text), "the help has no example"
