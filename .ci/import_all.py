"""Import every module of one installed package, and look that nothing strange was installed with it."""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import sys

# Modules that import what only their users have (pytest), or that start something when imported.
NOT_IMPORTED = ("pytest_plugin", "__main__")


def import_all(name: str) -> int:
    """Import `ottla.<name>` and all below it; return how many modules that were."""
    root = importlib.import_module(f"ottla.{name}")
    count = 1
    for module in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
        if module.name.rpartition(".")[2] not in NOT_IMPORTED:
            count += _imports(module.name)
    return count


def _imports(name: str) -> bool:
    """Import a module; False for one that serves tests and wants a test library that is not installed."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        wanted = error.name or ""
        if ".testing" not in name or wanted.startswith("ottla"):
            raise
        return False
    return True


def check_files(distribution: str) -> None:
    """Refuse a wheel that carries C or Cython source, tests, or a module for the namespace itself."""
    for file in importlib.metadata.files(distribution) or ():
        path = str(file)
        if path.endswith((".c", ".pyx", ".pxd")) or path == "ottla/__init__.py" or path.startswith("tests/"):
            sys.exit(f"{distribution} installs {path}")


def main(name: str) -> None:
    """Check one package of this tree in the environment it is installed in."""
    if name == "ottla":
        (command,) = importlib.metadata.entry_points(group="console_scripts", name="ottla")
        command.load()
        print("ottla: the command loads")
        return
    check_files(f"ottla-{name}")
    print(f"ottla.{name}: {import_all(name)} modules import")


if __name__ == "__main__":
    main(sys.argv[1])
