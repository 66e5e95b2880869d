"""The records of a topic, newest first, from an offset or from a time on, and the page of one record."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, cast
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ottla.client.cluster import NoSuchTopic
from ottla.client.errors import ClientError
from ottla.console.clusters.connections import ShownCluster
from ottla.console.pages import of_cluster, respond
from ottla.console.records.masking import masked
from ottla.console.records.reading import ShownRecord, from_offsets, from_time, newest, read_window
from ottla.console.records.values import ALL_BYTES, FORMS, PART_BYTES, Form, shown_value
from ottla.console.registry.records import shown_records
from ottla.console.web.fields import Unclear, settings, time_ms, whole
from ottla.console.web.formats import printable
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

Start = Literal["newest", "beginning", "offset", "time"]
READ_S: Final = 30.0
"""How long a page reads."""
COUNTS: Final = (50, 100, 500)
MOST_COPIED: Final = 1 << 20
"""Letters of a value that is edited in a form."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records an address asks for; `partition` None means all, times are in ms since 1970."""

    start: Start = "newest"
    partition: int | None = None
    offset: int = 0
    time_ms: int = 0
    at: str = ""
    count: int = COUNTS[0]
    form: Form = "auto"

    def link(self, **changes: object) -> str:
        """Return the query that asks for the same with changes."""
        other = replace(self, **changes)  # type: ignore[arg-type]
        parts = {
            "from": other.start, "partition": "" if other.partition is None else str(other.partition),
            "offset": str(other.offset) if other.start == "offset" else "",
            "at": other.at if other.start == "time" else "", "count": str(other.count), "form": other.form,
        }  # fmt: skip
        return "?" + urlencode({name: value for name, value in parts.items() if value})


def wanted_records(query: Mapping[str, str]) -> Wanted:
    """Return what an address asks for. Raises Unclear."""
    start = query.get("from", "newest")
    if start not in ("newest", "beginning", "offset", "time"):
        raise Unclear(f"{start!r} is no place to begin: newest, beginning, offset or time")
    count, form, at = query.get("count", ""), query.get("form", "auto"), query.get("at", "").strip()
    return Wanted(
        cast("Start", start),
        whole(query.get("partition", ""), "the partition") if query.get("partition") else None,
        whole(query.get("offset", "") or "0", "the offset"),
        time_ms(at) if start == "time" else 0,
        at,
        int(count) if count in map(str, COUNTS) else COUNTS[0],
        cast("Form", form if form in FORMS else "auto"),
    )


@of_cluster
async def records(request: Request, cluster: ShownCluster) -> Response:
    """Show records of a topic."""
    topic = request.path_params["topic"]
    wanted, found, failure = Wanted(), list[ShownRecord](), ""
    partitions: list[int] = []
    try:
        partitions = await _partitions(cluster, topic)
        wanted = wanted_records(request.query_params)
        async with asyncio.timeout(READ_S):
            found = await _read(cluster, topic, partitions, wanted)
    except NoSuchTopic:
        raise HTTPException(404, f"there is no topic {topic!r} in cluster {cluster.name}") from None
    except TimeoutError:
        failure = f"the records were not there within {READ_S:g} s: choose one partition"
    except (Unclear, ClientError, KafkaError) as error:
        failure = " ".join(str(error).split())
    return respond(
        request,
        "records",
        title=f"Records of {topic} · {cluster.name}",
        cluster=cluster,
        is_live=False,
        topic=topic,
        partitions=partitions,
        wanted=wanted,
        counts=COUNTS,
        forms=FORMS,
        failure=failure,
        rows=await shown_records(cluster.registry, cluster.mask(topic), found, wanted.form, PART_BYTES),
        further=_further(wanted, found),
    )


async def _partitions(cluster: ShownCluster, topic: str) -> list[int]:
    admin = await cluster.admin()
    return sorted((await admin.topics.describe(topic)).partitions)


async def _read(
    cluster: ShownCluster, topic: str, partitions: list[int], wanted: Wanted
) -> list[ShownRecord]:
    admin = await cluster.admin()
    if wanted.partition is not None and wanted.partition not in partitions:
        raise Unclear(f"topic {topic} has no partition {wanted.partition}, only 0 to {max(partitions)}")
    chosen = partitions if wanted.partition is None else [wanted.partition]
    match wanted.start:
        case "newest":
            return await newest(admin, topic, chosen, wanted.count)
        case "time":
            return await from_time(admin, topic, chosen, wanted.time_ms, wanted.count)
        case _:
            first = wanted.offset if wanted.start == "offset" else 0
            return await from_offsets(admin, topic, dict.fromkeys(chosen, first), wanted.count)


def _further(wanted: Wanted, found: list[ShownRecord]) -> dict[str, str]:
    """Return the links to earlier and later records; of one partition, where offsets say what comes next."""
    if wanted.partition is None or not found:
        return {}
    offsets = [record.offset for record in found]
    earlier = max(0, min(offsets) - wanted.count)
    links = {"Later": wanted.link(start="offset", offset=max(offsets) + 1)}
    if min(offsets) > 0:
        links["Earlier"] = wanted.link(start="offset", offset=earlier)
    return links


@of_cluster
async def record(request: Request, cluster: ShownCluster) -> Response:
    """Show one record whole, or download its value."""
    topic, query = request.path_params["topic"], request.query_params
    try:
        partition = whole(query.get("partition", ""), "the partition")
        offset = whole(query.get("offset", ""), "the offset")
        found = await _one(cluster, TopicPartition(topic, partition), offset)
    except Unclear as error:
        raise HTTPException(404, str(error)) from None
    except (ClientError, KafkaError) as error:
        raise HTTPException(503, " ".join(str(error).split())) from None
    if found is None:
        raise HTTPException(404, f"{topic}-{partition} has no record at offset {offset} (any more)")
    original = found
    found = await asyncio.to_thread(masked, original, cluster.mask(topic))
    if query.get("download") == "value":
        return _download(found, topic)
    form = cast("Form", query.get("form") if query.get("form") in FORMS else "auto")
    ((_, key, shown),) = await shown_records(
        cluster.registry, cluster.mask(topic), [original], form, ALL_BYTES
    )
    return respond(
        request,
        "record",
        title=f"{topic}-{partition} at {offset} · {cluster.name}",
        cluster=cluster,
        is_live=False,
        topic=topic,
        record=found,
        form=form,
        forms=FORMS,
        key=key,
        value=shown,
        copy=None if found.is_masked else copied_fields(topic, found),
        headers=[(name, shown_value(value, form)) for name, value in found.headers],
    )


def copied_fields(topic: str, found: ShownRecord) -> dict[str, str] | None:
    """Return the fields of a form that sends the same record again; None for one that forms would change."""
    key, value = _typed(found.key), _typed(found.value)
    headers = [(name, _typed(data)) for name, data in found.headers]
    if (
        found.key == b"" or key is None or "\n" in key or value is None or value.startswith("\n")
        or len({name for name, _ in headers}) < len(headers)
        or not all(text is not None and _is_line(name, text) for name, text in headers)
        or any(data is None for _, data in found.headers)
    ):  # fmt: skip
        return None
    fields = {
        "topic": topic, "key": key, "value": value, "tombstone": "1" if found.value is None else "",
        "headers": "\n".join(f"{name}={text}" for name, text in headers),
    }  # fmt: skip
    return {name: text for name, text in fields.items() if text} if len(value) <= MOST_COPIED else None


def _typed(data: bytes | None) -> str | None:
    """Return bytes as a user could type them, "" for none; None where a form would change them."""
    try:
        text = (data or b"").decode()
    except UnicodeDecodeError:
        return None
    return text if printable(text) == text else None


def _is_line(name: str, text: str) -> bool:
    return settings(f"{name}={text}") == {name: text} if name and "=" not in name else False


async def _one(cluster: ShownCluster, partition: TopicPartition, offset: int) -> ShownRecord | None:
    admin = await cluster.admin()
    window = await read_window(admin.cluster, partition, offset, offset + 1, 1)
    return next((found for found in window.records if found.offset == offset), None)


def _download(found: ShownRecord, topic: str) -> Response:
    """Return the bytes of a value as a file, which no browser shows as a page."""
    name = f"{topic}-{found.partition}-{found.offset}.bin"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(found.value or b"", headers=headers, media_type="application/octet-stream")
