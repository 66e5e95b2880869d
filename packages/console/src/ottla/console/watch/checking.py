"""Check rules once, for a command and for CI."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ottla.client.environment import monotonic_s
from ottla.client.errors import NoBrokerAvailable
from ottla.console.clusters.connections import ShownClusters
from ottla.console.clusters.samples import NoSample
from ottla.console.settings import ClusterSettings
from ottla.console.watch.collecting import look_at
from ottla.console.watch.rule_files import Rule
from ottla.console.watch.rules import FINDERS, Finding, findings


async def check_now(
    settings: ClusterSettings, rules: Sequence[Rule], between_s: float
) -> list[tuple[Rule, Finding]]:
    """Return that for which rules hold now; rules that compare two looks wait for the second.

    Raises ClientError where the cluster does not answer.
    """
    async with ShownClusters([settings], monotonic_s) as clusters:
        (cluster,) = clusters
        try:
            earlier = None
            look = await look_at(cluster)
            if any(rule.kind not in FINDERS for rule in rules):
                await asyncio.sleep(between_s)
                cluster.forget()
                earlier, look = look, await look_at(cluster)
        except NoSample as error:
            raise NoBrokerAvailable([str(error)]) from None
    return [(rule, finding) for rule in rules for finding in findings(rule, look, earlier)]
