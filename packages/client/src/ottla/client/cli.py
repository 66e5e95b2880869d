"""The `ottla` command: a group of the commands that installed packages provide.

A package adds a command through the entry-point group `ottla.commands`. The module of a command is imported
when the command runs. `ottla --help` reads the first line of each command's help from its source instead, so
it stays quick with any number of packages.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import click

from ottla.client import __version__

ENTRY_POINTS = "ottla.commands"

PACKAGES = {
    "acl": "ottla-admin",
    "alerts": "ottla-console",
    "broker": "ottla-broker",
    "cluster": "ottla-admin",
    "config": "ottla-admin",
    "console": "ottla-console",
    "consume": "ottla-consumer",
    "group": "ottla-admin",
    "leader": "ottla-admin",
    "log": "ottla-tools",
    "pipeline": "ottla-pipeline",
    "produce": "ottla-producer",
    "profile": "ottla-client",
    "quota": "ottla-admin",
    "reassign": "ottla-admin",
    "replica": "ottla-admin",
    "streams": "ottla-streams",
    "token": "ottla-admin",
    "topic": "ottla-admin",
    "txn": "ottla-admin",
    "user": "ottla-admin",
    "zookeeper": "ottla-zookeeper",
    "zookeeper-group": "ottla-consumer",
}
"""The package that brings each command."""

_INTERRUPTED = 130
"""The exit status of a shell's command that SIGINT ended."""

EXAMPLES = """\b
Examples:
  ottla broker start --listen 127.0.0.1:9092 --data-dir ./data
  ottla topic create orders --partitions 6
  printf 'anna:hello\\n' | ottla produce orders --key-separator :
  ottla consume orders --from-beginning --max-messages 1
  ottla group describe billing --json
"""


class InstalledCommands(click.Group):
    """A click group whose commands are entry points."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the installed commands."""
        return sorted(_installed())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command. A package that cannot be imported fails this command only."""
        entry = _installed().get(cmd_name)
        if entry is None:
            if (package := PACKAGES.get(cmd_name)) is None:
                return None
            from ottla.client.commands import not_installed  # for a mistake only

            raise not_installed(cmd_name, package, ctx)
        try:
            command = entry.load()
        except ImportError as error:
            package = entry.dist.name if entry.dist is not None else entry.module
            raise click.ClickException(
                f"`ottla {cmd_name}` cannot be loaded ({error}); install {package} again"
            ) from error
        if not isinstance(command, click.Command):
            raise click.ClickException(f"{entry.value} is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments begin with; for an unknown one, name the nearest."""
        name = args[0]
        if name[:1] != "-" and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            import difflib  # imported for a mistake only

            near = difflib.get_close_matches(name.lower(), _installed(), 1)
            advice = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {name!r}.{advice}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands with their help, without importing them."""
        rows = [(name, summary(entry)) for name, entry in sorted(_installed().items())]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Ctrl-C ends it with status 130 and no message, unless that is its usual end."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(_INTERRUPTED) from None

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command; a reader that closes the pipe (`| head`) is not an error, a full disk one line."""
        try:
            return super().main(*args, **kwargs)
        except BrokenPipeError:
            sys.exit(0)
        except OSError as error:
            # Writing output names no file. Nor do the broker's writes to its log: only another try can tell.
            if error.filename is not None or not _output_fails():
                raise
            _drop_output()
            click.echo(f"Error: the output cannot be written: {error.strerror}", err=True)
            sys.exit(1)


def _output_fails() -> bool:
    """Return whether the output takes no other line either."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _drop_output() -> None:
    """Replace the output, or the interpreter's last flush would fail again, with a traceback."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)


@cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def summary(entry: EntryPoint) -> str:
    """Return the first line of a command's docstring, read from its source."""
    source = _source_of(entry.module)
    if source is None:
        return "(not loadable)"
    docstring = re.search(_DOCSTRING.format(name=re.escape(entry.attr)), source, re.DOTALL | re.MULTILINE)
    return docstring[1].strip().rstrip(".") if docstring else ""


_DOCSTRING = r'^def {name}\((?:(?!\n\s*\n).)*?:\n\s+"""(.*?)(?:"""|\n)'
"""Matches a function up to the end of its docstring's first line; signatures have no empty lines."""


def _source_of(module: str) -> str | None:
    """Return the source of a module without importing the packages around it."""
    path: Sequence[str] | None = None
    origin: str | None = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:depth]), path)
        if spec is None:
            return None
        path, origin = spec.submodule_search_locations, spec.origin
    try:
        return Path(origin).read_text(encoding="utf-8") if origin else None
    except (OSError, UnicodeDecodeError):
        return None


@click.group(cls=InstalledCommands, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ottla")
def main() -> None:
    """Run and use Kafka-compatible brokers."""
