"""Modules that moved to another package: their old names import them, with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    Loader = object

    class MetaPathFinder:
        """Stands for the abstract class, whose module takes 3 ms to import."""


class MovedModules(MetaPathFinder, Loader):
    """A finder of modules by their old names; `install` makes it the last one of the import system.

    `new_names` has the new names of modules, packages with all below them, functions and classes. An old name
    imports the module of the new name itself, so that a class exists once.
    """

    def __init__(self, new_names: Mapping[str, str], distribution: str) -> None:
        self._new_names = new_names
        self._distribution = distribution

    def install(self) -> None:
        """Find modules by their old names from now on."""
        sys.meta_path.append(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that moved."""
        return ModuleSpec(fullname, self) if self._new_name(fullname) is not None else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return None: the import system makes the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Replace the empty module of an old name by the module of the new name."""
        old_name = module.__name__
        new_name = self._new_name(old_name)
        assert new_name is not None  # as find_spec found
        sys.modules[old_name] = self._import(old_name, new_name)
        _warn(old_name, new_name, stacklevel=3)

    def attribute(self, old_module: str, name: str) -> Any:
        """Return the object that was `old_module.name`; for the `__getattr__` of that module."""
        old_name = f"{old_module}.{name}"
        new_name = self._new_name(old_name)
        if new_name is None or (name.startswith("__") and name != "__all__"):
            raise AttributeError(f"module {old_module!r} has no attribute {name!r}")
        module, _, _ = new_name.rpartition(".")
        found = getattr(self._import(old_name, module), name)
        _warn(old_name, new_name, stacklevel=4)
        return found

    def _new_name(self, old_name: str) -> str | None:
        if old_name in self._new_names:
            return self._new_names[old_name]
        package, _, name = old_name.rpartition(".")
        return f"{self._new_names[package]}.{name}" if package in self._new_names else None

    def _import(self, old_name: str, new_name: str) -> ModuleType:
        try:
            return import_module(new_name)
        except ModuleNotFoundError as error:
            if error.name != ".".join(new_name.split(".")[:2]):  # the package is installed
                raise
            raise ModuleNotFoundError(
                f"{old_name} is in another package now: python -m pip install {self._distribution}",
                name=error.name,
            ) from None


def _warn(old_name: str, new_name: str, *, stacklevel: int) -> None:
    warnings.warn(f"{old_name} is now {new_name}", DeprecationWarning, stacklevel=stacklevel)
