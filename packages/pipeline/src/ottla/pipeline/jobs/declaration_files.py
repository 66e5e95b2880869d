"""Read a declaration file into a job of its kind, or report all mistakes in it with their lines."""

from __future__ import annotations

import ast
import difflib
import runpy
import tomllib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.declaration import Job, relative_to
from ottla.pipeline.jobs.declaration_errors import (
    DeclarationError,
    Located,
    Mistake,
    SettingPath,
    mistakes_of,
)

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


class Lines(Protocol):
    """Finds the lines of settings in a file."""

    def of(self, path: SettingPath) -> int:
        """Return the line (from 1) of a value, or of the nearest enclosing table that exists."""


class TomlLines:
    """Lines of a TOML file.

    tomllib reports no positions. But each statement ends where the file up to that line can be parsed, and a
    value is declared by the first statement after which it exists.
    """

    def __init__(self, text: str) -> None:
        self._steps = list(_steps(text))

    def of(self, path: SettingPath) -> int:
        """Return the line of a value, or of the nearest enclosing table that exists."""
        for length in range(len(path), 0, -1):
            for line, values in self._steps:
                if _is_there(values, path[:length]):
                    return line
        return 1


def _steps(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the first line of each statement, with the declaration up to its end."""
    lines = text.splitlines()
    begun = 0
    for end in range(1, len(lines) + 1):
        try:
            values = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue  # inside a list or a multi-line text
        if lines[end - 1].strip() and not lines[end - 1].lstrip().startswith("#"):
            yield _first_said(lines, begun) + 1, values
        begun = end


def _first_said(lines: list[str], begun: int) -> int:
    while not lines[begun].strip() or lines[begun].lstrip().startswith("#"):
        begun += 1
    return begun


def _is_there(values: Any, path: SettingPath) -> bool:
    for step in path:
        try:
            values = _under(values, step)
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _under(values: Any, step: str | int) -> Any:
    """Return the value at a path; a dotted name without quotes is a path of nested tables."""
    if isinstance(values, dict) and isinstance(step, str) and step not in values:
        for name, inner in values.items():
            if step.startswith(f"{name}."):
                return _under(inner, step.removeprefix(f"{name}."))
    return values[step]


class PythonLines:
    """Lines of a Python file that contains `pipeline = {...}` or `pipeline = Kind(...)`."""

    def __init__(self, text: str, variable: str) -> None:
        self._line, self._value = _assignment(ast.parse(text), variable)

    def of(self, path: SettingPath) -> int:
        """Return the line of a value, or of the nearest enclosing value that the file writes literally."""
        line, value = self._line, self._value
        for step in path:
            found = _inside(value, step)
            if found is None:
                break
            line, value = found
        return line


def _assignment(module: ast.Module, variable: str) -> tuple[int, ast.expr | None]:
    for node in reversed(module.body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == variable:
                return node.lineno, value
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if name == variable:
                return node.lineno, value
    return 1, None


def _inside(value: ast.expr | None, step: str | int) -> tuple[int, ast.expr] | None:
    match value:
        case ast.Dict(keys=keys, values=values):
            for key, item in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and key.value == step:
                    return key.lineno, item
        case ast.Call(keywords=keywords):
            for keyword in keywords:
                if keyword.arg == step:
                    return keyword.lineno, keyword.value
        case ast.List(elts=items) | ast.Tuple(elts=items) if isinstance(step, int) and step < len(items):
            return items[step].lineno, items[step]
    return None


VARIABLE = "pipeline"
"""The name of the declaration in a Python file."""


def read_job(file: Path) -> Job:
    """Return the pipeline that a file declares. Raises DeclarationError with all mistakes and their lines."""
    if file.suffix not in (".toml", ".py"):
        raise _error(file, 1, Mistake((), "a pipeline has to be declared in a .toml or a .py file"))
    text = _text(file)
    with relative_to(file.resolve().parent):
        return _read_toml(file, text) if file.suffix == ".toml" else _read_python(file, text)


def declares(file: Path) -> bool:
    """Whether a file looks like a declaration: a folder may contain other TOML and Python files.

    Those may have any content. Raises PipelineError for a file that cannot be read.
    """
    lines = _text(file, errors="replace").splitlines()
    if file.suffix == ".toml":
        return any(line.replace(" ", "").startswith("kind=") for line in lines)
    return any(line.startswith((f"{VARIABLE} =", f"{VARIABLE}:")) for line in lines)


def _text(file: Path, errors: str = "strict") -> str:
    try:
        return file.read_text(encoding="utf-8", errors=errors)
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"{file} cannot be read: {error}") from None


def _read_toml(file: Path, text: str) -> Job:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _error(file, _broken_at(text), Mistake((), f"the file is not TOML: {error}")) from None
    return _job(file, values, TomlLines(text))


def _broken_at(text: str) -> int:
    """Return the last line up to which the file can be parsed."""
    lines = text.splitlines()
    whole = 0
    for end in range(1, len(lines) + 1):
        try:
            tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        whole = end
    return min(whole + 1, max(len(lines), 1))


def _read_python(file: Path, text: str) -> Job:
    try:
        lines = PythonLines(text, VARIABLE)
    except SyntaxError as error:
        raise _error(file, error.lineno or 1, Mistake((), f"the file is not Python: {error.msg}")) from None
    try:
        found = runpy.run_path(str(file)).get(VARIABLE)
    except ValidationError as error:
        _refuse(file, mistakes_of(error, BaseModel), _around(lines, _raised_at(error, file)))
        raise
    except Exception as error:  # a file may raise anything; its author needs the line
        said = Mistake((), f"{type(error).__name__}: {error}")
        raise _error(file, _raised_at(error, file), said) from error
    if isinstance(found, Job):
        _refuse(file, found.inspect(), lines)
        return found
    if not isinstance(found, Mapping):
        raise _error(file, lines.of(()), Mistake((), f"the file has to contain {VARIABLE} = {{...}}"))
    return _job(file, found, lines)


def _raised_at(error: BaseException, file: Path) -> int:
    places = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
    ]
    return places[-1] or 1 if places else 1


class _OneLine:
    """Lines of a declaration that the file builds itself: the line of the call."""

    def __init__(self, line: int) -> None:
        self._line = line

    def of(self, path: SettingPath) -> int:
        return self._line


def _around(lines: Lines, raised_at: int) -> Lines:
    """Return the lines of the call that created the declaration, if that call raised the error."""
    return lines if lines.of(()) == raised_at else _OneLine(raised_at)


def _job(file: Path, values: Mapping[str, Any], lines: Lines) -> Job:
    cls = _class_of(file, values, lines)
    try:
        job = cls.model_validate(dict(values))
    except ValidationError as error:
        _refuse(file, mistakes_of(error, cls), lines)
        raise
    _refuse(file, job.inspect(), lines)
    return job


def _class_of(file: Path, values: Mapping[str, Any], lines: Lines) -> type[Job]:
    if "kind" not in values:
        raise _error(file, 1, Mistake(("kind",), f"is missing: it has to be one of {', '.join(kinds())}"))
    try:
        return job_class(values["kind"])
    except UnknownKind as error:
        raise _error(file, lines.of(("kind",)), Mistake(("kind",), str(error))) from None


def _refuse(file: Path, mistakes: Iterable[Mistake], lines: Lines) -> None:
    located = [Located(lines.of(mistake.path), mistake) for mistake in mistakes]
    if located:
        raise DeclarationError(str(file), sorted(located, key=lambda each: each.line))


def _error(file: Path, line: int, *mistakes: Mistake) -> DeclarationError:
    return DeclarationError(str(file), [Located(line, mistake) for mistake in mistakes])


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
