"""Versions: the features of the cluster, and the versions of each API that the brokers speak."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from ottla.admin import Admin, BrokerVersions
from ottla.client.errors import ClientError
from ottla.console.clusters.connections import ShownCluster
from ottla.console.pages import of_cluster, respond
from ottla.protocol.errors import KafkaError


@dataclass(frozen=True, slots=True)
class VersionRow:
    """An API or a feature, and what each broker has of it, as text; empty where a broker lacks it."""

    name: str
    values: tuple[str, ...]
    level: int | None = None

    @property
    def differs(self) -> bool:
        """Whether brokers have different versions, as while they are upgraded one by one."""
        return len(set(self.values)) > 1


@of_cluster
async def versions(request: Request, cluster: ShownCluster) -> Response:
    """Show the versions."""
    sample = await cluster.ask(("versions",), _read)
    found, silent = sample.value
    apis = api_rows(found)
    return respond(
        request, "versions", title=f"Versions · {cluster.name}", cluster=cluster, sample=sample,
        brokers=sorted(found), silent=silent, apis=apis, features=feature_rows(found),
        differing=sum(row.differs for row in apis),
    )  # fmt: skip


def api_rows(found: Mapping[int, BrokerVersions]) -> list[VersionRow]:
    """Return a row for each API: those that differ first."""
    names = sorted({name for versions in found.values() for name in versions.apis})
    rows = [
        VersionRow(name, tuple(_range(found[broker].apis.get(name)) for broker in sorted(found)))
        for name in names
    ]
    return sorted(rows, key=lambda row: not row.differs)


def feature_rows(found: Mapping[int, BrokerVersions]) -> list[VersionRow]:
    """Return a row for each feature, with its level in the cluster."""
    by_broker = [{feature.name: feature for feature in found[broker].features} for broker in sorted(found)]
    names = sorted({name for features in by_broker for name in features})
    rows = []
    for name in names:
        known = [features.get(name) for features in by_broker]
        level = next((feature.level for feature in known if feature is not None), None)
        values = tuple("" if feature is None else _range((feature.least, feature.most)) for feature in known)
        rows.append(VersionRow(name, values, level))
    return rows


def _range(versions: tuple[int, int] | None) -> str:
    if versions is None:
        return ""
    least, most = versions
    return str(least) if least == most else f"{least} to {most}"


async def _read(admin: Admin) -> tuple[dict[int, BrokerVersions], dict[int, str]]:
    """Return the versions of the brokers, and the reasons of those that do not answer."""
    brokers = [broker.id for broker in (await admin.brokers.describe()).brokers]
    answers = await asyncio.gather(*(_of_broker(admin, broker) for broker in brokers))
    found = {answer.broker: answer for answer in answers if isinstance(answer, BrokerVersions)}
    silent = {
        broker: answer for broker, answer in zip(brokers, answers, strict=True) if isinstance(answer, str)
    }
    return found, silent


async def _of_broker(admin: Admin, broker: int) -> BrokerVersions | str:
    try:
        return await admin.brokers.versions(broker)
    except (ClientError, KafkaError) as error:
        return " ".join(str(error).split())
