"""`ottla pipeline`: run, list, check and watch pipelines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.client.commands import (
    chosen_profile,
    cluster_options,
    load_config,
    profile_option,
    show,
    show_json,
)

if TYPE_CHECKING:
    from ottla.client.page_server import Page
    from ottla.pipeline.jobs.declaration import Job
    from ottla.pipeline.jobs.drafts import Registry

_STOPPING = (
    "\nStopping after this batch, for which it waits up to {:g} s; press Ctrl+C again to stop at once.\n"
)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
WRONG = 2
"""The exit code for invalid declarations."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def pipeline() -> None:
    """Run pipelines over topics, declared in files.

    \b
    Examples:
      ottla pipeline new orders
      ottla pipeline sample logs --declaration > logs.toml
      ottla pipeline check logs.toml
      ottla pipeline run logs.toml --once
      ottla pipeline status logs.toml

    The commands that read declarations take --profile: it has the brokers and the login of a cluster that
    names no profile of its own.
    """


@pipeline.command()
@click.argument("file", type=FILE)
@click.option("--once", is_flag=True, help="Process the records that exist now, then stop.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@click.option(
    "--status",
    metavar="HOST:PORT",
    help="Serve /health and /status on this address, for probes and `ottla console`.",
)
@click.option(
    "--status-certificate",
    type=click.Path(dir_okay=False),
    help="PEM file with a certificate and its key, for these pages.",
)
@click.option(
    "--status-token-file",
    type=click.Path(dir_okay=False),
    help="File with the token that readers of these pages show.",
)
@click.option("--status-open", is_flag=True, help="Serve them without either, to all that reach the address.")
@profile_option
def run(
    file: Path,
    once: bool,
    quiet: bool,
    status: str | None,
    status_certificate: str | None,
    status_token_file: str | None,
    status_open: bool,
) -> None:
    """Run a pipeline until it is stopped.

    Ctrl+C and SIGTERM stop it. With --once it ends when all records are read.

    \b
    Examples:
      ottla pipeline run logs.toml
      ottla pipeline run logs.toml --once --profile production
      ottla pipeline run logs.toml --status 127.0.0.1:9466
    """
    from ottla.pipeline.errors import PipelineError
    from ottla.pipeline.jobs.progress_display import ProgressDisplay
    from ottla.pipeline.jobs.run import FINISH_S, Run, stop_on_signals

    job = _read(file)
    _show_facts()
    with ProgressDisplay(once=once, quiet=quiet) as shown:
        run = Run(job, once=once, watch=shown.update)
        try:
            with (
                _served(run.status_page, status, status_certificate, status_token_file, is_open=status_open),
                stop_on_signals(run.stopping, "" if quiet else _STOPPING.format(FINISH_S)),
            ):
                run()
        except PipelineError as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            raise click.ClickException(f"{job.name} failed: {error}") from None
    if not quiet:
        shown.print_summary()
        click.echo(run.cost(shown.rows).line())


def _show_facts() -> None:
    """Write warnings to standard error with their facts, which `logging` would leave out."""
    from ottla.client.log_formats import FactsFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(FactsFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


@contextmanager
def _served(
    page: Callable[[str], Page], address: str | None, certificate: str | None, token_file: str | None,
    *, is_open: bool,
) -> Iterator[None]:  # fmt: skip
    """Serve the pages of a run within the block, if an address is given. Raises UsageError."""
    if address is None:
        yield
        return
    from ottla.client.config import parse_bootstrap_servers
    from ottla.client.page_server import PageServer, PagesRefused, page_access

    try:
        (at,) = parse_bootstrap_servers(address)
        access = page_access(at.host, certificate=certificate, token_file=token_file, is_open=is_open)
        server = PageServer(at.host, at.port, page, "pipeline-status", access=access)
    except (PagesRefused, ValueError) as error:
        raise click.UsageError(f"--status: {error}") from None
    except OSError as error:
        raise click.UsageError(f"--status: {address} cannot be served: {error.strerror}") from None
    server.start()
    try:
        yield
    finally:
        server.stop()


@pipeline.command()
@click.argument("files", nargs=-1, required=True, type=FILE)
@profile_option
def check(files: tuple[Path, ...]) -> None:
    """Check declarations and report all mistakes with their lines. Uses no broker, no Spark and no secret.

    \b
    Examples:
      ottla pipeline check logs.toml
      ottla pipeline check pipelines/*.toml --profile production
    """
    from ottla.pipeline.errors import PipelineError
    from ottla.pipeline.jobs.declaration_errors import DeclarationError

    wrong = 0
    for file in files:
        try:
            job = _read_job(file)
        except PipelineError as error:
            wrong += len(error.located) if isinstance(error, DeclarationError) else 1
            click.echo(str(error))
        else:
            click.echo(f"{file}: {job.name} ({job.kind}) is valid")
    if wrong:
        click.echo(f"{wrong} {'mistake' if wrong == 1 else 'mistakes'}", err=True)
        raise click.exceptions.Exit(WRONG)


@pipeline.command("list")
@click.argument("places", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@profile_option
def list_(places: tuple[Path, ...], as_json: bool) -> None:
    """List the kinds of pipelines, or those that files declare.

    A folder stands for all the files in it.

    \b
    Examples:
      ottla pipeline list
      ottla pipeline list pipelines/ extra.toml
    """
    if not places:
        from ottla.pipeline.jobs.declaration_files import about, kinds

        show(("kind", "what it does"), [(kind, about(kind)) for kind in kinds()], as_json=as_json)
        return
    rows = [row for file in _declarations(places) if (row := _row(file)) is not None]
    show(("name", "kind", "state", "file"), rows, as_json=as_json)


@pipeline.command()
@click.argument("file", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl+C.")
@profile_option
def status(file: Path, as_json: bool, watch: bool) -> None:
    """Show a pipeline's rows/s, lag, late rows and batch times.

    \b
    Examples:
      ottla pipeline status logs.toml
      ottla pipeline status logs.toml --watch
    """
    from ottla.pipeline.errors import PipelineError

    job = _read(file)
    try:
        _show_status(job, as_json=as_json, clear=watch)
        while watch:
            time.sleep(1)
            _show_status(job, as_json=as_json, clear=True)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        if not watch:
            raise


@pipeline.command()
@click.argument("kind")
@click.option("--declaration", is_flag=True, help="Print a declaration to start from, and send nothing.")
@click.option("--topic", help="The topic to fill; the default is the topic of the declaration.")
@click.option(
    "--count", type=click.IntRange(1), default=1_000, show_default=True, help=("The number of records.")
)
@cluster_options
def sample(
    kind: str,
    declaration: bool,
    topic: str | None,
    count: int,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Fill a topic with sample data for a kind of pipeline.

    Or print the declaration of its pipeline.

    \b
    Examples:
      ottla pipeline sample logs
      ottla pipeline sample logs --declaration > logs.toml
      ottla pipeline sample logs --count 100000 --profile production
    """
    from ottla.pipeline.errors import PipelineError
    from ottla.pipeline.jobs.declaration_files import UnknownKind
    from ottla.pipeline.jobs.samples import sample_declaration, send_sample

    try:
        if declaration:
            click.echo(sample_declaration(kind, *_connection(bootstrap_server)), nl=False)
            return
        said = send_sample(kind, bootstrap_server, topic, count, load_config(properties))
    except UnknownKind as error:
        raise click.UsageError(str(error)) from None
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    click.echo(said)


@pipeline.command()
@click.argument("topic")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; the default is TOPIC.toml.",
)
@click.option(
    "--sample",
    "count",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="The number of records to look at, from the ends of the partitions.",
)
@click.option(
    "--registry",
    metavar="URL",
    help="The schema registry of the values; the default is that of the profile.",
)
@click.option("--yes", "-y", is_flag=True, help="Write it without a question.")
@cluster_options
def new(
    topic: str,
    output: Path | None,
    count: int,
    registry: str | None,
    yes: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Draft a declaration from a topic, show it, and write it.

    The fields are those of the topic's schema, or of its records.

    Values that name a schema of the registry have the columns of that schema; of others, a sample shows them.

    \b
    Examples:
      ottla pipeline new orders
      ottla pipeline new orders --registry http://127.0.0.1:8081
      ottla pipeline new access-logs --output logs.toml --sample 1000 --profile production
    """
    from ottla.pipeline.errors import PipelineError
    from ottla.pipeline.jobs.declaration import cluster_errors
    from ottla.pipeline.jobs.drafts import drafted, sampled

    file = output or Path(f"{topic}.toml")
    if file.exists():
        raise click.ClickException(f"{file} exists already: give another file with --output")
    try:
        with cluster_errors():
            samples = sampled(topic, bootstrap_server, load_config(properties), count)
        text = drafted(topic, samples, *_connection(bootstrap_server), _registry(registry))
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    click.echo(text, nl=False)
    if not yes:
        click.confirm(f"Write {file}?", abort=True)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}") from None
    click.echo(f"Wrote {file}: ottla pipeline run {file} --once")


def _registry(url: str | None) -> Registry | None:
    """Return the schema registry that is given, or that of the chosen profile. Raises PipelineError."""
    from ottla.client.settings import SettingError
    from ottla.pipeline.errors import PipelineError
    from ottla.pipeline.jobs.drafts import Registry
    from ottla.pipeline.registry_values import registry_of_profile

    profile, _ = chosen_profile()
    try:
        named = None if profile is None else registry_of_profile(profile.name)
    except SettingError as error:
        raise PipelineError(str(error)) from None
    address = url or named
    if address is None:
        return None
    return Registry(address, None if profile is None or address != named else profile.name)


def _connection(bootstrap_server: str) -> tuple[str | None, str | None]:
    """Return the brokers for a declaration, unless the chosen profile names them, and that profile."""
    profile, _ = chosen_profile()
    if profile is None:
        return bootstrap_server, None
    return (None if bootstrap_server == profile.servers else bootstrap_server), profile.name


def _read_job(file: Path) -> Job:
    """Read a declaration; its clusters without a profile get that of the command. Raises PipelineError."""
    from ottla.pipeline.jobs.declaration import ChosenProfile, ClusterTable, connected_by
    from ottla.pipeline.jobs.declaration_files import read_job

    profile, by_user = chosen_profile()
    with connected_by(None if profile is None else ChosenProfile(profile.name, by_user)):
        job = read_job(file)
    clusters = [value for _, value in job if isinstance(value, ClusterTable)]
    if profile is not None and by_user and len(clusters) > 1:
        raise click.UsageError(
            f"{job.name} connects to several clusters: write profile = ... into the table of each"
        )
    return job


def _read(file: Path) -> Job:
    from ottla.pipeline.errors import PipelineError
    from ottla.pipeline.jobs.declaration_errors import DeclarationError

    try:
        return _read_job(file)
    except DeclarationError as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(WRONG) from None
    except PipelineError as error:
        raise click.ClickException(str(error)) from None


def _show_status(job: Job, *, as_json: bool, clear: bool) -> None:
    from ottla.pipeline.jobs.progress_display import status_rows

    found = _status(job)
    if as_json:
        show_json(found)
        return
    if clear:
        click.clear()
    click.echo(f"{job.name} ({job.kind}) {found['state']}{_because(found.get('error'))}")
    show(*status_rows(found), as_json=False)


def _status(job: Job) -> dict[str, object]:
    from ottla.pipeline.jobs.progress_report import STATUS, state_now
    from ottla.pipeline.jobs.state_files import StateFile

    found = StateFile(Path(job.checkpoint) / STATUS).read()
    if not found:
        return {"name": job.name, "kind": job.kind, "state": "never run", "queries": {}}
    return found | {"state": state_now(found, time.time())}


def _because(error: object) -> str:
    return f": {error}" if error else ""


def _declarations(places: tuple[Path, ...]) -> Iterator[Path]:
    for place in places:
        if place.is_file():
            yield place
        else:
            yield from sorted(file for file in place.iterdir() if file.suffix in (".toml", ".py"))


def _row(file: Path) -> tuple[object, ...] | None:
    """Return the row to list for a file; None for a file of a folder that is not a declaration."""
    from ottla.pipeline.errors import PipelineError
    from ottla.pipeline.jobs.declaration_errors import DeclarationError
    from ottla.pipeline.jobs.declaration_files import declares

    try:
        if not declares(file):
            return None
        job = _read_job(file)
        return job.name, job.kind, _status(job)["state"], str(file)
    except DeclarationError as error:
        return file.stem, None, f"invalid: line {error.located[0].line}", str(file)
    except PipelineError as error:
        return file.stem, None, f"invalid: {error}", str(file)
