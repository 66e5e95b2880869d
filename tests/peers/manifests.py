"""The Kubernetes objects of the manifests in `deploy`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
PIPELINES: Final = "kubernetes-pipelines"


def manifests(of: str = "kubernetes") -> Iterator[dict[str, Any]]:
    """Yield the objects of all manifests that the kustomization of a folder names."""
    folder = DEPLOY / of
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    generated = [file for made in kustomization.get("configMapGenerator", ()) for file in made["files"]]
    named = {*kustomization["resources"], *generated, "kustomization.yaml"}
    assert {path.name for path in folder.iterdir()} == named
    for resource in kustomization["resources"]:
        yield from yaml.safe_load_all((folder / resource).read_text(encoding="utf-8"))
