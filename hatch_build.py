"""Requirements of `pip install .` at the root: `ottla` and its dependencies, as wheels of this clone."""

import re
import sys
import tomllib
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

UMBRELLA = "ottla"


class CustomMetadataHook(MetadataHookInterface):
    """Builds the umbrella and what it needs of this tree, and requires these wheels instead of PyPI's."""

    def update(self, metadata):
        packages = Path(self.root).resolve() / "packages"
        sys.path.insert(0, str(packages))
        from clone_wheels import wheels

        built = wheels([folder_of(name) for name in sorted(common_set(packages))])
        metadata["dependencies"] = [f"{name_of(folder)} @ {path.as_uri()}" for folder, path in built.items()]


def common_set(packages):
    """Name the umbrella and the packages of this tree that it needs, directly or not."""
    known, waiting = set(), [UMBRELLA]
    while waiting:
        name = waiting.pop()
        if name not in known:
            known.add(name)
            waiting += needs_of(packages / folder_of(name))
    return known


def needs_of(folder):
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [found[0] for need in project["dependencies"] if (found := re.match(r"ottla-\w+", need))]


def folder_of(name):
    return name.removeprefix("ottla-")


def name_of(folder):
    return folder if folder == UMBRELLA else f"ottla-{folder}"
