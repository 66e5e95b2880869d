"""Import every module of one installed package, and look that nothing strange was installed with it.

    python .ci/import_all.py NAME [--with-extras]
    python .ci/import_all.py --prepare NAME

What only an extra brings may be missing, unless it is said to be there. `--prepare` installs the packages of
this tree that NAME needs; instead of the name, both take the folder of the package.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

# Modules that import what only their users have (pytest), or that start something when imported.
NOT_IMPORTED = ("pytest_plugin", "__main__")
# The other packages compile against its declarations and headers.
DECLARING = "ottla-protocol"
PACKAGES = Path(__file__).resolve().parents[1] / "packages"


def import_all(name: str, may_lack: Collection[str]) -> int:
    """Import `ottla.<name>` and all below it; return how many modules that were."""
    root = importlib.import_module(f"ottla.{name}")
    count = 1
    for module in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
        if module.name.rpartition(".")[2] not in NOT_IMPORTED:
            count += _imports(module.name, may_lack)
    return count


def _imports(name: str, may_lack: Collection[str]) -> bool:
    """Import a module; False for one that wants what an extra brings, or the tools of the tests it serves."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        wanted = (error.name or "").partition(".")[0]
        serves_tests = ".testing" in name and wanted != "ottla"
        if not serves_tests and not any(f"{extra}_".startswith(f"{wanted}_") for extra in may_lack):
            raise
        return False
    return True


def brought_by_extras(distribution: str) -> Iterator[str]:
    """Name what extras of a distribution install, as their modules would be called."""
    for requirement in importlib.metadata.requires(distribution) or ():
        name = re.match(r"[\w.-]+", requirement)
        if name is not None and "extra ==" in requirement:
            yield name[0].replace("-", "_")


def check_files(distribution: str) -> None:
    """Refuse a wheel that carries C or Cython source, tests, or a module for the namespace itself."""
    refused = (".c", ".pyx", ".pxi") if distribution == DECLARING else (".c", ".pyx", ".pxi", ".pxd", ".h")
    for file in importlib.metadata.files(distribution) or ():
        path = str(file)
        if path.endswith(refused) or path == "ottla/__init__.py" or path.startswith("tests/"):
            sys.exit(f"{distribution} installs {path}")


def main(name: str, *, with_extras: bool) -> None:
    """Check one package of this tree in the environment it is installed in."""
    if name == "ottla":
        (command,) = importlib.metadata.entry_points(group="console_scripts", name="ottla")
        command.load()
        print("ottla: the command loads")
        return
    check_files(f"ottla-{name}")
    may_lack = () if with_extras else tuple(brought_by_extras(f"ottla-{name}"))
    print(f"ottla.{name}: {import_all(name, may_lack)} modules import")


def prepare(name: str) -> None:
    """Install wheels of what a package needs of this tree: PyPI may not have them yet."""
    sys.path.insert(0, str(PACKAGES))
    from clone_wheels import common_set, folder_of

    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "hatchling>=1.26", "setuptools>=77", "cython>=3.1,<4"], check=True)
    siblings = {folder_of(package) for package in common_set(f"ottla-{name}")} - {name}
    build = [sys.executable, str(PACKAGES / "clone_wheels.py"), *sorted(siblings)]
    built = subprocess.run(build, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    if siblings:
        subprocess.run([*pip, *built], check=True)


if __name__ == "__main__":
    if sys.argv[1] == "--prepare":
        prepare(Path(sys.argv[2]).name)
    else:
        main(Path(sys.argv[1]).name, with_extras="--with-extras" in sys.argv[2:])
