"""The repository's own sources, read as text and syntax trees: what the structure tests look at."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_DOCSTRING: Final = re.compile(r':\n\s+r?"""(.*?)"""', re.DOTALL)
_PYX_DEF: Final = re.compile(r"^(\s*)(?:async\s+def|def|cp?def(?!\s+class\b))\s+[^=(]*?(\w+)\s*\(")


@dataclass(frozen=True)
class Function:
    """One function: where it begins and how many lines it has, its docstring included."""

    name: str
    first_line: int
    lines: int
    docstring: str = ""


@dataclass(frozen=True)
class Source:
    """One Python or Cython file."""

    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path)

    @cached_property
    def text(self) -> str:
        """The whole file."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def lines(self) -> list[str]:
        """The file's lines."""
        return self.text.splitlines()

    @property
    def is_native(self) -> bool:
        """Whether Cython compiles the file."""
        return self.path.suffix != ".py"

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree of a `.py` file."""
        return ast.parse(self.text)

    @cached_property
    def docstring(self) -> str:
        """The module's docstring, or an empty string."""
        if not self.is_native:
            return ast.get_docstring(self.tree) or ""
        found = re.match(r'(?:#[^\n]*\n|\s*\n)*"""(.*?)"""', self.text, re.DOTALL)
        return found[1] if found else ""

    def docstrings(self) -> Iterator[tuple[int, str]]:
        """Yield the docstrings of a `.py` file with their lines; none of a native one."""
        if self.is_native:
            return
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if text := ast.get_docstring(node):
                yield node.body[0].lineno, text

    def defines_something(self) -> bool:
        """Return whether a `.py` file has a class, a function, or an assignment other than `__all__`."""
        definitions = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign
        names = [
            getattr(target, "id", "")
            for node in self.tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
        ]
        return any(isinstance(node, definitions) for node in self.tree.body) or bool({*names} - {"__all__"})

    def functions(self) -> Iterator[Function]:
        """Yield every function and method, nested ones included."""
        yield from self._native_functions() if self.is_native else self._python_functions()

    def _python_functions(self) -> Iterator[Function]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                yield Function(node.name, node.lineno, lines, ast.get_docstring(node) or "")

    def _native_functions(self) -> Iterator[Function]:
        for number, line in enumerate(self.lines):
            found = _PYX_DEF.match(line)
            if found:
                lines = self._native_length(number, len(found[1]))
                written = _DOCSTRING.search("\n".join(self.lines[number : number + lines]))
                yield Function(found[2], number + 1, lines, written[1] if written else "")

    def _native_length(self, first: int, indent: int) -> int:
        """Count lines up to the next one that is indented no deeper than the definition."""
        last = first
        for number in range(first + 1, len(self.lines)):
            line = self.lines[number]
            if not line.strip():
                continue
            if len(line) - len(line.lstrip()) <= indent and not line.lstrip().startswith(("#", ")", "}")):
                break
            last = number
        return last - first + 1


def package_sources() -> list[Source]:
    """Return the sources of all packages, read once in a process."""
    return list(_sources("packages/*/src"))


def all_sources() -> list[Source]:
    """Return the sources of packages, tests, benchmarks, examples and documentation hooks."""
    others = _sources("packages/*/tests", "tests", "benchmarks", "examples", "docs/hooks")
    return [*package_sources(), *others]


def stubs() -> list[Source]:
    """Return the stubs of native modules."""
    return [Source(path) for path in sorted(ROOT.glob("packages/*/src/**/*.pyi"))]


@cache
def _sources(*folders: str) -> list[Source]:
    found = [
        path
        for folder in folders
        for root in sorted(ROOT.glob(folder))
        for path in sorted(root.rglob("*.p*"))
        if path.suffix in {".py", ".pyx", ".pxd", ".pxi"}
    ]
    return [Source(path) for path in found]


def module_name(source: Source) -> str:
    """Return the dotted name under which a package's source is imported."""
    *folders, _ = source.path.parts
    while "src" in folders:
        folders = folders[folders.index("src") + 1 :]
    dotted = [*folders, source.path.stem]
    return ".".join(dotted[:-1] if dotted[-1] == "__init__" else dotted)


def imported_modules(source: Source, known: set[str]) -> set[str]:
    """Return which of the `known` modules a source imports, for types only and inside functions included."""
    name = module_name(source)
    package = name if source.path.stem == "__init__" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom):
            found |= _imported_from(node, package, known)
    return found - {name}


def _imported_from(node: ast.ImportFrom, package: str, known: set[str]) -> set[str]:
    base = node.module or ""
    if node.level:
        parents = package.split(".")
        base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
    names = {f"{base}.{alias.name}" for alias in node.names}
    modules = names & known
    # A name that is no module of its own comes from the package or module it is imported from.
    return modules | ({base} if len(modules) < len(names) and base in known else set())


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for following in sorted(graph.get(node, ())):
            if following not in index:
                visit(following)
                low[node] = min(low[node], low[following])
            elif following in stack:
                low[node] = min(low[node], index[following])
        if low[node] == index[node]:
            at = stack.index(node)
            component = sorted(stack[at:])
            del stack[at:]
            if len(component) > 1:
                found.append(component)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found
