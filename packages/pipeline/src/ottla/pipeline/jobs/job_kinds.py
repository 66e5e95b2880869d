"""The kinds of pipelines."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.declaration import Job

ENTRY_POINTS = "ottla.pipelines"
"""Other packages register kinds of their own in this group of entry points."""

_OURS = {
    "logs": "ottla.pipeline.jobs.logs:Logs",
    "activity": "ottla.pipeline.jobs.activity:Activity",
    "changelog": "ottla.pipeline.jobs.changelog:Changelog",
    "alerts": "ottla.pipeline.jobs.alerts:Alerts",
    "tables": "ottla.pipeline.jobs.tables:Tables",
    "mirror": "ottla.pipeline.jobs.mirror:Mirror",
}


class UnknownKind(PipelineError, ValueError):
    """An unknown kind of pipeline."""

    def __init__(self, kind: object, known: list[str]) -> None:
        near = difflib.get_close_matches(str(kind), known, 1)
        hint = f"did you mean {near[0]}?" if near else f"the kinds are {', '.join(known)}"
        super().__init__(f"there is no kind {kind!r}; {hint}")


def kinds() -> list[str]:
    """Return the names of all kinds, built-in ones first."""
    return [*_OURS, *(entry.name for entry in _others())]


def job_class(kind: object) -> type[Job]:
    """Return the class of a kind. Raises UnknownKind."""
    if isinstance(kind, str) and kind in _OURS:
        module, _, name = _OURS[kind].partition(":")
        found = getattr(import_module(module), name)
    else:
        entry = next((entry for entry in _others() if entry.name == kind), None)
        if entry is None:
            raise UnknownKind(kind, kinds())
        found = entry.load()
    if not (isinstance(found, type) and issubclass(found, Job)):
        raise PipelineError(f"{found!r} is not a subclass of ottla.pipeline.jobs.declaration.Job")
    return found


def about(kind: str) -> str:
    """Return a one-line description of a kind."""
    return (job_class(kind).__doc__ or "").strip().splitlines()[0].rstrip(".")


def _others() -> Iterator[EntryPoint]:
    return (entry for entry in entry_points(group=ENTRY_POINTS) if entry.name not in _OURS)
