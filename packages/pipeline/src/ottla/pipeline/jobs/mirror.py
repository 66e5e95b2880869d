"""Topics of one cluster copied to another, with a mapping of offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.pipeline.jobs.declaration import cluster_errors
from ottla.pipeline.jobs.mirroring.mirror_declaration import MirrorDeclaration

if TYPE_CHECKING:
    from ottla.pipeline.jobs.run import Run


class Mirror(MirrorDeclaration):
    """Topics of one cluster → the same in another, each record once, with offset mapping."""

    def run(self, run: Run) -> None:
        """Copy until all records of the start are copied (`run.once`), or until `run.stopping`."""
        with cluster_errors():
            if self.engine == "spark":
                from ottla.pipeline.jobs.mirroring.on_spark import mirror_on_spark

                mirror_on_spark(self, run)
            else:
                from ottla.pipeline.jobs.mirroring.on_sdk import mirror_on_sdk

                mirror_on_sdk(self, run)
