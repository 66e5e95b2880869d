"""`ottla completion`, and the names of topics that a shell completes. A cluster has a second to answer."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from ottla.client.config import ClientConfig

BOUND_S: Final = 1.0
_HARMLESS: Final = re.compile(r"[\w.@%+/][\w.@%+/:=-]*")
"""Names without a letter that shells, or the scripts of completion, take for something else."""
Names = Callable[[str, "ClientConfig"], Awaitable[Iterable[str]]]
Complete = Callable[[click.Context, click.Parameter, str], list[str]]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script by which a shell completes commands, options, topics, groups and keys.

    \b
    Examples:
      source <(ottla completion bash)         in ~/.bashrc
      source <(ottla completion zsh)          in ~/.zshrc
      ottla completion fish | source          in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    from ottla.client.cli import main

    found = get_completion_class(shell)
    assert found is not None
    made = found(main, {}, "ottla", "_OTTLA_COMPLETE")
    click.echo(made.source_template % made.source_vars())  # `source` asks for the version of bash before


def completes(names: Names) -> Complete:
    """Return a completion with names that a cluster knows; none where it does not answer in a second."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        import asyncio

        async def ask() -> Iterable[str]:
            from ottla.client.commands import completion_target

            async with asyncio.timeout(BOUND_S):
                return await names(*completion_target(context))

        try:
            found = asyncio.run(ask())
        except Exception:  # a shell has no place for errors
            return []
        # Shells put a completion into the line as it is: a group named `$(...)` would be run.
        return sorted(name for name in found if name.startswith(incomplete) and _HARMLESS.fullmatch(name))

    return complete


async def _topics(servers: str, config: ClientConfig) -> Iterable[str]:
    from ottla.client.cluster import Cluster

    async with Cluster(servers, config) as cluster:
        answer = await cluster.refresh(None)
        return [topic.name for topic in answer.topics if topic.name is not None]


complete_topics: Final = completes(_topics)
"""The names of the topics of a command's cluster."""
