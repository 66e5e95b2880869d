"""Streams apps, pipelines, and dead letters, which are edited and sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ottla.admin import Admin
from ottla.client.cluster import NoSuchTopic
from ottla.client.errors import ClientError
from ottla.console.clusters.applications import Applications, Pipeline, Processor, Shown, StreamsApp
from ottla.console.clusters.connections import ShownCluster
from ottla.console.clusters.samples import NoSample
from ottla.console.logins.access import Need, Viewer
from ottla.console.pages import of_cluster, respond, respond_with_form
from ottla.console.pages.records import copied_fields
from ottla.console.records.dead_letters import DeadLetter, dead_letter, likely_topics
from ottla.console.records.masking import HIDDEN_CAUSE, masked
from ottla.console.records.reading import newest
from ottla.console.records.values import ShownValue, shown_value
from ottla.console.web.fields import is_whole
from ottla.protocol.errors import KafkaError

MOST_GROUPS: Final = 100
"""Groups that are asked whether they are of a streams app."""
COUNTS: Final = (50, 200)
READ_S: Final = 30.0
_METADATA: Final = "ottla1."
"""The begin of the commit metadata in which `ottla.streams` keeps finished offsets."""
_GROUPS_FOR_S: Final = 60.0


@of_cluster
async def streams(request: Request, cluster: ShownCluster) -> Response:
    """Show the streams apps and the pipelines of a cluster, and where their dead letters are."""
    sample = await cluster.state()
    applications: Applications = request.state.applications
    shown = [
        without_values(cluster, seen_place(cluster.viewer, cluster.name, found))
        for found in await applications.of(cluster.name)
    ]
    apps = [app for found in shown for app in _parts(found) if isinstance(app, StreamsApp)]
    processors = [processor for app in apps for processor in app.processors]
    topics = {health.partition.topic for health in sample.value.partitions}
    return respond(
        request,
        "streams",
        title=f"Streams · {cluster.name}",
        cluster=cluster,
        sample=sample,
        shown=shown,
        apps=apps,
        pipelines=[found for place in shown for found in _parts(place) if isinstance(found, Pipeline)],
        others=sorted(set(await _groups_of_apps(cluster)) - {processor.group for processor in processors}),
        dead_letters=likely_topics(topics, (processor.dead_letter_topic for processor in processors)),
    )


def _parts(shown: Shown) -> Iterable[StreamsApp | Pipeline]:
    return () if shown.sample is None else shown.sample.value


def seen_place(viewer: Viewer, cluster: str, shown: Shown) -> Shown:
    """Return that of a place that a viewer may see; pipelines need the whole cluster."""
    if shown.sample is None or viewer.may(Need(cluster=cluster, is_whole=True)):
        return shown
    parts = [
        replace(
            app,
            processors=tuple(
                _seen_processor(viewer, cluster, found)
                for found in app.processors
                if viewer.may(Need(cluster=cluster, group=found.group))
            ),
        )
        for app in shown.sample.value
        if isinstance(app, StreamsApp)
    ]
    return replace(shown, sample=replace(shown.sample, value=tuple(app for app in parts if app.processors)))


def without_values(cluster: ShownCluster, shown: Shown) -> Shown:
    """Return a place without the words of failures that may repeat what its viewer may not read."""
    if shown.sample is None or not cluster.hides_data(()):
        return shown
    parts = tuple(
        replace(part, processors=tuple(_without_values(cluster, found) for found in part.processors))
        if isinstance(part, StreamsApp)
        else replace(part, failure=part.failure and HIDDEN_CAUSE)  # it may have read any topic
        for part in shown.sample.value
    )
    return replace(shown, sample=replace(shown.sample, value=parts))


def _without_values(cluster: ShownCluster, found: Processor) -> Processor:
    is_hidden = found.last_failure and cluster.hides_data({line.topic for line in found.partitions})
    return replace(found, last_failure=HIDDEN_CAUSE) if is_hidden else found


def _seen_processor(viewer: Viewer, cluster: str, found: Processor) -> Processor:
    """Return a handler without the topics that a viewer may not see; texts may name any of them."""

    def is_seen(topic: str) -> bool:
        return viewer.may(Need(cluster=cluster, topic=topic))

    partitions = tuple(line for line in found.partitions if is_seen(line.topic))
    is_whole = bool(partitions) and len(partitions) == len(found.partitions)
    return replace(
        found,
        reasons=found.reasons if is_whole or not found.reasons else ("it is not healthy",),
        last_failure=found.last_failure if is_whole else "",
        oldest=found.oldest if found.oldest is not None and is_seen(found.oldest.topic) else None,
        retrying=tuple(work for work in found.retrying if is_seen(work.topic)),
        dead_letter_topic=found.dead_letter_topic if is_seen(found.dead_letter_topic) else "",
        partitions=partitions,
    )


async def _groups_of_apps(cluster: ShownCluster) -> list[str]:
    """Return the groups whose commits are those of a streams app; none while they do not answer."""

    async def ask(admin: Admin) -> list[str]:
        groups = [group.name for group in await admin.groups.list()][:MOST_GROUPS]
        found = []
        for group in groups:
            try:
                commits = await admin.groups.committed(group)
            except (ClientError, KafkaError):
                continue  # its coordinator is away; its own page says so
            if any(metadata.startswith(_METADATA) for _, metadata in commits.values()):
                found.append(group)
        return found

    try:
        found = (await cluster.ask(("groups of apps",), ask, fresh_s=_GROUPS_FOR_S)).value
    except NoSample:
        return []
    return [group for group in found if cluster.may(group=group)]


@dataclass(frozen=True, slots=True)
class Row:
    """A dead letter with its key and value for people, and the fields of a form that sends it again."""

    letter: DeadLetter
    key: ShownValue
    value: ShownValue
    copy: dict[str, str] | None


@of_cluster
async def dead_letters(request: Request, cluster: ShownCluster) -> Response:
    """Show the newest dead letters of a topic, each with its cause."""
    topic, count = request.path_params["topic"], request.query_params.get("count", "")
    most = int(count) if is_whole(count) and int(count) in COUNTS else COUNTS[0]
    failure, rows, others = "", list[Row](), 0
    try:
        admin = await cluster.admin()
        partitions = sorted((await admin.topics.describe(topic)).partitions)
        async with asyncio.timeout(READ_S):
            found = await newest(admin, topic, partitions, most)
        letters = [letter for record in found if (letter := dead_letter(record)) is not None]
        others = sum(record.fate == "record" for record in found) - len(letters)
        rows = await asyncio.to_thread(lambda: [_row(cluster, topic, letter) for letter in letters])
    except NoSuchTopic:
        raise HTTPException(404, f"there is no topic {topic!r} in cluster {cluster.name}") from None
    except TimeoutError:
        failure = f"the records were not there within {READ_S:g} s"
    except (ClientError, KafkaError) as error:
        failure = " ".join(str(error).split())
    return respond_with_form(
        request, "dead_letters", title=f"Dead letters of {topic} · {cluster.name}", cluster=cluster,
        is_live=False, topic=topic, rows=rows, others=max(0, others), failure=failure, counts=COUNTS,
        most=most,
    )  # fmt: skip


def _row(cluster: ShownCluster, topic: str, letter: DeadLetter) -> Row:
    """Return the row of a dead letter; its data is that of two topics, and the masks of both hide it."""
    record = masked(letter.record, cluster.mask(topic))
    readable = dead_letter(record) or replace(letter, record=record)  # its cause is of headers, too
    is_whole = replace(readable.original, is_masked=False) == letter.original
    may_send = is_whole and not letter.truncated and letter.topic
    return Row(
        readable, shown_value(record.key, "auto"), shown_value(record.value, "auto"),
        copied_fields(letter.topic, readable.original) if may_send else None,
    )  # fmt: skip
