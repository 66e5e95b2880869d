"""A group of commands to which other packages add theirs."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import click


class ExtensibleGroup(click.Group):
    """The commands of a module, and those that installed packages bring as entry points of `group`."""

    def __init__(self, *args: Any, entry_point_group: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._entry_point_group = entry_point_group

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        added = (each.name for each in entry_points(group=self._entry_point_group))
        return sorted({*super().list_commands(ctx), *added})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported when it is needed."""
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        found = next(iter(entry_points(group=self._entry_point_group, name=cmd_name)), None)
        added = None if found is None else found.load()
        return added if isinstance(added, click.Command) else None
