"""Find the app of a program: in a file, or in a module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from ottla.streams.app import App, is_being_loaded
from ottla.streams.assembly import AppError


def load_app(target: str) -> App:
    """Return the app of `file.py`, `file.py:name`, `module` or `module:name`.

    Without a name it is the only App of the module. Files can import their neighbours; modules are found from
    the working directory too. An `app.run()` at the end of the program does nothing. Raises AppError,
    and what the program raises when it is imported.
    """
    place, _, name = target.partition(":") if not _is_windows_path(target) else (target, "", "")
    before = is_being_loaded.set(True)
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else _from_module(place)
    finally:
        is_being_loaded.reset(before)
    return _named(module, name, place) if name else _only_app(module, place)


def file_of(target: str) -> Path:
    """Return the file or folder of a program, whose changes mean a reload."""
    place = target.partition(":")[0]
    if place.endswith(".py"):
        return Path(place).resolve().parent
    sys.path.insert(0, str(Path.cwd()))
    spec = importlib.util.find_spec(place.partition(".")[0])
    if spec is None or spec.origin is None:
        raise AppError(f"there is no module {place!r} here or installed")
    return Path(spec.origin).resolve().parent


def _is_windows_path(target: str) -> bool:
    return len(target) > 1 and target[1] == ":" and target.endswith(".py")


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise AppError(f"there is no file {path}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Under its own name, so that worker processes can import its functions.
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _from_module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise AppError(
                f"there is no module {name!r} here or installed; for a file give its name with .py"
            ) from None
        raise


def _named(module: ModuleType, name: str, place: str) -> App:
    found = getattr(module, name, None)
    if isinstance(found, App):
        return found
    if found is None:
        raise AppError(f"{place} has no {name!r}; {_apps_there(module)}")
    raise AppError(f"{name} of {place} is a {type(found).__name__}, not an App; {_apps_there(module)}")


def _only_app(module: ModuleType, place: str) -> App:
    apps = _apps(module)
    if len({id(app) for app in apps.values()}) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise AppError(f'{place} has no App at its top level; write app = App("name")')
    raise AppError(f"{place} has several apps; give one: {', '.join(f'{place}:{app}' for app in apps)}")


def _apps(module: ModuleType) -> dict[str, App]:
    return {name: found for name, found in vars(module).items() if isinstance(found, App)}


def _apps_there(module: ModuleType) -> str:
    apps = _apps(module)
    return f"its apps are {', '.join(apps)}" if apps else "it has no App"
