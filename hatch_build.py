"""Requirements of `pip install .` at the root: `ottla` and its dependencies, as folders of this clone."""

import re
import tomllib
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

UMBRELLA = "ottla"


class CustomMetadataHook(MetadataHookInterface):
    """Requires the umbrella and what it needs of this tree, so that none of it is looked for on PyPI."""

    def update(self, metadata):
        packages = Path(self.root).resolve() / "packages"
        metadata["dependencies"] = [
            f"{name} @ {(packages / folder_of(name)).as_uri()}" for name in sorted(common_set(packages))
        ]


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
