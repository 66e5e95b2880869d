"""The `ottla` command: a group of the commands that installed packages provide.

A package adds a command through the entry-point group `ottla.commands`. The module of a command is imported
when the command runs. `ottla --help` reads the first line of each command's help from its source instead, so
it stays quick with any number of packages.

Our own commands are looked up in the entry points of the one package that brings them: importlib.metadata
reads those of all packages, and takes longer to import than most commands take to run.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

import click

from ottla.client import __version__

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "ottla.commands"

PACKAGES = {
    "acl": "ottla-admin",
    "alerts": "ottla-console",
    "broker": "ottla-broker",
    "clients": "ottla-admin",
    "cluster": "ottla-admin",
    "completion": "ottla-client",
    "config": "ottla-admin",
    "console": "ottla-console",
    "consume": "ottla-consumer",
    "feature": "ottla-admin",
    "group": "ottla-admin",
    "leader": "ottla-admin",
    "log": "ottla-tools",
    "perf": "ottla-client",
    "pipeline": "ottla-pipeline",
    "produce": "ottla-producer",
    "profile": "ottla-client",
    "quota": "ottla-admin",
    "reassign": "ottla-admin",
    "registry": "ottla-registry",
    "replica": "ottla-admin",
    "share-group": "ottla-admin",
    "sql": "ottla-consumer",
    "streams": "ottla-streams",
    "token": "ottla-admin",
    "top": "ottla-admin",
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
        package = PACKAGES.get(cmd_name)
        target = None if package is None else own_entry_point(package, cmd_name, sys.path)
        if target is None:
            entry = _installed().get(cmd_name)
            if entry is None:
                if package is None:
                    return None
                from ottla.client.commands import not_installed  # for a mistake only

                raise not_installed(cmd_name, package, ctx)
            target, package = entry.value, entry.dist.name if entry.dist is not None else entry.module
        return _load(cmd_name, target, package or cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands with their help, without importing them."""
        rows = [(name, summary(entry)) for name, entry in sorted(_installed().items())]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Ctrl-C ends it with status 130 and no message, unless that is its usual end.

        An unknown command, of whichever group, is refused with the nearest one of that group.
        """
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _with_nearest_command(error) from None
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


def _with_nearest_command(error: click.UsageError) -> click.UsageError:
    """Return the error of an unknown command with the nearest one of its group, any other as it is.

    Click's versions before 8.4 have no type for it, and later ones do not see `reset-offsets` near `reset`.
    """
    group = error.ctx.command if error.ctx is not None else None
    found = _UNKNOWN_COMMAND.fullmatch(error.message)
    if found is None or error.ctx is None or not isinstance(group, click.Group):
        return error
    import difflib  # for a mistake only

    name, names = found[1], group.list_commands(error.ctx)
    begun = [known for known in names if known.startswith(name.lower())]
    near = difflib.get_close_matches(name.lower(), begun or names, 1, 0.0 if begun else 0.6)
    advice = f" Did you mean {near[0]!r}?" if near else ""
    return click.UsageError(f"{error.message}{advice}", error.ctx)


_UNKNOWN_COMMAND = re.compile(r"No such command '([^']+)'\.")


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


def _load(name: str, target: str, package: str) -> click.Command:
    """Import the command that an entry point names as MODULE:ATTRIBUTE."""
    module, _, attribute = target.partition(":")
    try:
        command = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise click.ClickException(
            f"`ottla {name}` cannot be loaded ({error}); install {package} again"
        ) from error
    if not isinstance(command, click.Command):
        raise click.ClickException(f"{target} is not a click command")
    return command


def own_entry_point(package: str, command: str, folders: Sequence[str]) -> str | None:
    """Return the entry point of a command from the metadata of its package, None where there is none."""
    distribution = package.replace("-", "_") + "-"
    for folder in folders:
        try:
            names = os.listdir(folder or ".")
        except OSError:  # a zip file, or gone: importlib.metadata knows how to look into it
            continue
        for name in names:
            if name.startswith(distribution) and name.endswith(".dist-info"):
                return _in_section(os.path.join(folder, name, "entry_points.txt"), command)
    return None


def _in_section(path: str, command: str) -> str | None:
    """Return the value of a command in the section `ottla.commands` of a file of entry points."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except OSError:
        return None
    section = ""
    for line in lines:
        key, _, value = line.partition("=")
        if line.startswith("["):
            section = line.strip("[]")
        elif section == ENTRY_POINTS and key.rstrip() == command:
            return value.lstrip()
    return None


@cache
def _installed() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # slow to import, and not needed for our own commands

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
        with open(origin or os.devnull, encoding="utf-8") as file:
            return file.read() or None
    except (OSError, UnicodeDecodeError):
        return None


@click.group(cls=InstalledCommands, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ottla")
def main() -> None:
    """Run and use Kafka-compatible brokers."""
