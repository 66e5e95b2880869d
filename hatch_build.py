"""Requirements of `pip install .` at the root: `ottla` and its dependencies, as wheels of this clone."""

import sys
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


class CustomMetadataHook(MetadataHookInterface):
    """Builds the umbrella and what it needs of this tree, and requires these wheels instead of PyPI's."""

    def update(self, metadata):
        sys.path.insert(0, str(Path(self.root).resolve() / "packages"))
        from clone_wheels import common_set, folder_of, wheels

        folders = {folder_of(name): name for name in sorted(common_set("ottla"))}
        built = wheels([*folders])
        metadata["dependencies"] = [f"{folders[name]} @ {path.as_uri()}" for name, path in built.items()]
