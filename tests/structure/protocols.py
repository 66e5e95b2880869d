"""Protocols that are written through: code that is given one assigns its attributes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from structure.sources import Source, module_name


@dataclass
class Class:
    """A class of the sources: its bases by name, and the names of its methods and attributes."""

    module: str
    node: ast.ClassDef
    members: set[str] = field(default_factory=set)

    @property
    def is_protocol(self) -> bool:
        """Whether it is a Protocol of typing: `asyncio.Protocol` is another thing."""
        bases = [base.value if isinstance(base, ast.Subscript) else base for base in self.node.bases]
        return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in bases)

    @cached_property
    def bases(self) -> list[str]:
        """The names of its bases, without their modules and type arguments."""
        return [name for base in self.node.bases if (name := _name(base)) is not None]


class Classes:
    """All classes of the sources."""

    def __init__(self, found: Iterable[Class]) -> None:
        self._by_name: dict[str, list[Class]] = {}
        for cls in found:
            self._by_name.setdefault(cls.node.name, []).append(cls)

    def __iter__(self) -> Iterator[Class]:
        return (cls for found in self._by_name.values() for cls in found)

    def protocols(self, name: str) -> dict[str, Class]:
        """Return the Protocols of a name, by their modules."""
        return {cls.module: cls for cls in self._by_name.get(name, ()) if cls.is_protocol}

    def of(self, name: str, *, near: Class) -> Class | None:
        """Return the class of a name: that of the same module, or else any."""
        found = self._by_name.get(name, ())
        return next((cls for cls in found if cls.module == near.module), next(iter(found), None))


def written_through(sources: Iterable[Source]) -> dict[str, list[str]]:
    """Return the Protocols of at most one implementer whose attributes are assigned through them.

    By name, with the places as "path:line attribute". Each class that has all members is an implementer:
    fakes of tests where their sources are given, and native classes where their stubs are.
    """
    modules = [(source, module_name(source), source.tree) for source in sources]
    classes = Classes(found for _, module, tree in modules for found in _classes(module, tree))
    places: dict[tuple[str, str], list[str]] = {}
    protocols: dict[tuple[str, str], Class] = {}
    for source, module, tree in modules:
        known = _protocols_in(module, tree, classes)
        for protocol, line, attribute in _assignments(tree, known) if known else ():
            if attribute in _all_members(protocol, classes):
                key = protocol.module, protocol.node.name
                protocols[key] = protocol
                places.setdefault(key, []).append(f"{source}:{line} {attribute}")
    return {
        f"{module}.{name}": found
        for (module, name), found in places.items()
        if len(_implementers(protocols[module, name], classes)) <= 1
    }


def _classes(module: str, tree: ast.Module) -> Iterator[Class]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield Class(module, node, set(_members(node)))


def _members(node: ast.ClassDef) -> Iterator[str]:
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child.name
            yield from _attributes_of_self(child)
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield child.target.id
        elif isinstance(child, ast.Assign):
            yield from (target.id for target in child.targets if isinstance(target, ast.Name))


def _attributes_of_self(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            yield node.attr


def _all_members(found: Class, classes: Classes) -> set[str]:
    """Return the members of a class and of its bases; a base is the class of that name, nearest first."""
    members = set(found.members)
    for base in found.bases:
        if (parent := classes.of(base, near=found)) is not None and parent is not found:
            members |= _all_members(parent, classes)
    return members


def _implementers(protocol: Class, classes: Classes) -> list[Class]:
    wanted = _all_members(protocol, classes)
    return [found for found in classes if not found.is_protocol and wanted <= _all_members(found, classes)]


def _protocols_in(module: str, tree: ast.Module, classes: Classes) -> dict[str, Class]:
    """Return the Protocols that a module defines or imports, by their names in it."""
    known: dict[str, Class] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (own := classes.protocols(node.name).get(module)) is not None:
            known[node.name] = own
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (imported := classes.protocols(alias.name).get(node.module or "")) is not None:
                    known[alias.asname or alias.name] = imported
    return known


def _assignments(tree: ast.Module, known: dict[str, Class]) -> Iterator[tuple[Class, int, str]]:
    """Yield assignments to attributes of parameters and of attributes of `self` that are Protocols."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            held = _held(node, known)
            for function in node.body:
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from _assigned_in(function, known, held)
        elif isinstance(node, ast.Module):
            for function in node.body:
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from _assigned_in(function, known, {})


def _held(node: ast.ClassDef, known: dict[str, Class]) -> dict[str, Class]:
    """Return the attributes of `self` that are Protocols: annotated, or set from a parameter that is one."""
    held = {
        child.target.id: protocol
        for child in node.body
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name)
        if (protocol := _protocol(child.annotation, known)) is not None
    }
    for function in node.body:
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            given = _parameters(function, known)
            held |= {
                target.attr: given[child.value.id]
                for child in ast.walk(function)
                if isinstance(child, ast.Assign) and isinstance(child.value, ast.Name)
                if child.value.id in given
                for target in child.targets
                if isinstance(target, ast.Attribute) and _is_self(target.value)
            }
    return held


def _assigned_in(
    function: ast.FunctionDef | ast.AsyncFunctionDef, known: dict[str, Class], held: dict[str, Class]
) -> Iterator[tuple[Class, int, str]]:
    given = _parameters(function, known)
    for node in ast.walk(function):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
            continue
        if isinstance(node.value, ast.Name):
            protocol = given.get(node.value.id)
        elif isinstance(node.value, ast.Attribute) and _is_self(node.value.value):
            protocol = held.get(node.value.attr)
        else:
            protocol = None
        if protocol is not None:
            yield protocol, node.lineno, node.attr


def _parameters(
    function: ast.FunctionDef | ast.AsyncFunctionDef, known: dict[str, Class]
) -> dict[str, Class]:
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return {
        argument.arg: protocol
        for argument in arguments
        if argument.annotation is not None and (protocol := _protocol(argument.annotation, known)) is not None
    }


def _protocol(annotation: ast.expr, known: dict[str, Class]) -> Class | None:
    if isinstance(annotation, ast.BinOp):  # X | None
        return _protocol(annotation.left, known) or _protocol(annotation.right, known)
    name = _name(annotation)
    return known.get(name) if name is not None else None


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.partition("[")[0]
    return None
