"""The records of a topic, newest first, from an offset or from a time on, and the page of one record."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ottla.client.cluster import NoSuchTopic
from ottla.client.errors import ClientError
from ottla.console.clusters.connections import ShownCluster
from ottla.console.pages import of_cluster, respond, respond_with_form
from ottla.console.pages.searches import (
    is_of_another_site,
    job_of,
    partitions_of,
    rows_of,
    searching,
)
from ottla.console.records.comparing import compared
from ottla.console.records.masking import masked
from ottla.console.records.reading import ShownRecord, from_offsets, from_time, newest, read_window
from ottla.console.records.searches import SearchFailed, TooManySearches
from ottla.console.records.values import ALL_BYTES, FORMS, PART_BYTES, Form, shown_value
from ottla.console.records.wanted import COUNTS, Shown, Wanted, wanted_records
from ottla.console.registry.records import ShownRow, shown_records
from ottla.console.web.fields import Unclear, is_whole, settings, whole
from ottla.console.web.formats import printable
from ottla.console.web.streams import attachment, while_there
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

READ_S: Final = 30.0
"""How long a page reads."""
MOST_COPIED: Final = 1 << 20
"""Letters of a value that is edited in a form."""


@of_cluster
async def records(request: Request, cluster: ShownCluster) -> Response:
    """Show records of a topic; a search and a tail go on as events, which a script asks for (`searches`)."""
    topic, query = request.path_params["topic"], request.query_params
    shown: dict[str, Any] = {"wanted": Wanted(), "partitions": [], "failure": "", "rows": [], "further": {}}
    is_plain, status = query.get("plain") == "1" and not is_of_another_site(request), HTTPStatus.OK
    try:
        shown["partitions"] = await partitions_of(cluster, topic)
        shown["wanted"] = wanted = wanted_records(query)
        chosen = wanted.partitions(shown["partitions"], topic)
        if not (wanted.is_search or wanted.is_tail):
            async with while_there(request.receive, READ_S):
                found = await _read(cluster, topic, chosen, wanted)
            shown["rows"] = await shown_records(
                cluster.registry, cluster.mask(topic), found, wanted.form, PART_BYTES
            )
            shown["further"] = _further(wanted, found)
        elif is_plain:
            shown |= await _searched(request, cluster, topic, wanted)
    except NoSuchTopic:
        raise HTTPException(404, f"there is no topic {topic!r} in cluster {cluster.name}") from None
    except TimeoutError:
        shown["failure"] = f"the records were not there within {READ_S:g} s: choose one partition"
    except (Unclear, ClientError, KafkaError, SearchFailed, TooManySearches) as error:
        shown["failure"] = " ".join(str(error).split())
        status = error.status_code if isinstance(error, TooManySearches) else status
    return respond(
        request, "records", title=f"Records of {topic} · {cluster.name}", cluster=cluster, is_live=False,
        topic=topic, counts=COUNTS, forms=FORMS, is_plain=is_plain, status=status,
        **{"state": {}, **shown},
    )  # fmt: skip


async def _searched(request: Request, cluster: ShownCluster, topic: str, wanted: Wanted) -> dict[str, Any]:
    """Search without a script: as long as a page may take, with that which was found until then."""
    found: list[ShownRow] = []
    state: dict[str, Any] = {"is_over": False}
    job = await job_of(cluster, topic, wanted, "search")
    try:
        async with (
            while_there(request.receive, READ_S),
            searching(request, cluster, job) as search,
            aclosing(search.frames()) as frames,
        ):
            async for frame in frames:
                if frame["kind"] == "found":
                    found += await rows_of(cluster, topic, frame["records"], wanted.form)
        state["is_over"] = True
    except TimeoutError:
        pass
    goes_on = Shown(wanted)
    goes_on.add(record for record, _, _ in found)
    state |= {**search.progress, "is_queued": False, "next": goes_on.next_link()}
    return {"rows": found, "state": state}


async def _read(cluster: ShownCluster, topic: str, chosen: list[int], wanted: Wanted) -> list[ShownRecord]:
    admin = await cluster.admin()
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
    except NoSuchTopic:
        raise HTTPException(404, f"there is no topic {topic!r} in cluster {cluster.name}") from None
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
    if query.get("show") in ("key", "value"):
        return _as_text(found.key if query.get("show") == "key" else found.value)
    form = cast("Form", query.get("form") if query.get("form") in FORMS else "auto")
    ((_, key, shown),) = await shown_records(
        cluster.registry, cluster.mask(topic), [original], form, ALL_BYTES
    )
    return respond_with_form(
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
        tombstone=None if found.is_masked else tombstone_fields(topic, found),
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


def tombstone_fields(topic: str, found: ShownRecord) -> dict[str, str] | None:
    """Return the fields of a form that deletes a record's key; None where there is none, or it is deleted."""
    if found.key is None or found.value is None:
        return None
    return copied_fields(topic, replace(found, value=None, headers=()))


def _typed(data: bytes | None) -> str | None:
    """Return bytes as a user could type them, "" for none; None where a form would change them."""
    try:
        text = (data or b"").decode()
    except UnicodeDecodeError:
        return None
    return text if printable(text) == text else None


def _is_line(name: str, text: str) -> bool:
    is_name = bool(name) and "=" not in name and printable(name) == name
    return is_name and settings(f"{name}={text}") == {name: text}


async def _one(cluster: ShownCluster, partition: TopicPartition, offset: int) -> ShownRecord | None:
    admin = await cluster.admin()
    if partition.partition not in await partitions_of(cluster, partition.topic):
        raise Unclear(f"topic {partition.topic} has no partition {partition.partition}")
    window = await read_window(admin.cluster, partition, offset, offset + 1, 1)
    return next((found for found in window.records if found.offset == offset), None)


def _download(found: ShownRecord, topic: str) -> Response:
    """Return the bytes of a value as a file, which no browser shows as a page."""
    name = f"{topic}-{found.partition}-{found.offset}.bin"
    return Response(found.value or b"", headers=attachment(name), media_type="application/octet-stream")


def _as_text(data: bytes | None) -> Response:
    """Return bytes as plain text: whole, quick in any browser, and never run."""
    return Response(data or b"", media_type="text/plain; charset=utf-8")


@of_cluster
async def compare(request: Request, cluster: ShownCluster) -> Response:
    """Show two records of a topic beside each other, line by line."""
    topic, query = request.path_params["topic"], request.query_params
    places = [_place(query.get(name, "")) for name in ("a", "b")]
    found, failure = list[ShownRecord](), ""
    try:
        for partition, offset in places:
            read = await _one(cluster, TopicPartition(topic, partition), offset)
            if read is None:
                raise Unclear(f"{topic}-{partition} has no record at offset {offset} (any more)")
            found.append(await asyncio.to_thread(masked, read, cluster.mask(topic)))
    except (Unclear, ClientError, KafkaError) as error:
        found, failure = [], " ".join(str(error).split())
    parts = await asyncio.to_thread(compared, *found) if found else []
    return respond(
        request, "compare", title=f"Two records of {topic} · {cluster.name}", cluster=cluster, is_live=False,
        topic=topic, places=places, records=found, parts=parts, failure=failure,
        status=404 if failure else 200,
    )  # fmt: skip


def _place(text: str) -> tuple[int, int]:
    """Return partition and offset of PARTITION-OFFSET. Raises HTTPException."""
    partition, _, offset = text.partition("-")
    if not (is_whole(partition) and is_whole(offset)):
        raise HTTPException(400, f"{text!r} names no record: give PARTITION-OFFSET, such as 0-17")
    return int(partition), int(offset)
