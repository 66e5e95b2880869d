"""Manifests of Kubernetes, by its schemas: `nox -s manifests` has them, other environments skip this."""

from __future__ import annotations

from typing import Any

import pytest

from peers.manifests import PIPELINES, manifests

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="108 MB: nox -s manifests")


@pytest.mark.parametrize(
    "manifest",
    [
        pytest.param(m, id=f"{m['kind']}-{m['metadata']['name']}")
        for folder in ("kubernetes", PIPELINES)
        for m in manifests(folder)
    ],
)
def test_a_manifest_is_valid_for_kubernetes(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, "1.33", strict=True)
