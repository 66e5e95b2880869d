"""Searches, tails and exports of records: events for the page, files, and the list of those that run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ottla.client.cluster import NoSuchTopic
from ottla.client.errors import ClientError
from ottla.console.clusters.connections import ShownCluster
from ottla.console.logins.access import Role
from ottla.console.pages import check_form, of_cluster, respond_with_form, viewer_of
from ottla.console.pages.changes import read_form, write_audit
from ottla.console.records.exporting import FORMATS, MOST_EXPORTED
from ottla.console.records.search_process import Job, JobKind, uncut
from ottla.console.records.searches import (
    Frame,
    RunningSearch,
    Searches,
    SearchFailed,
    TooManySearches,
)
from ottla.console.records.values import PART_BYTES, Form, shown_value
from ottla.console.records.wanted import (
    MOST_POSITIONS,
    Shown,
    Wanted,
    positions_text,
    read_positions,
    wanted_records,
)
from ottla.console.registry.records import ShownRow, shown_records
from ottla.console.web.fields import Unclear, is_whole
from ottla.console.web.rendering import Renderer
from ottla.console.web.streams import StreamedResponse, attachment, event
from ottla.protocol.errors import KafkaError


async def partitions_of(cluster: ShownCluster, topic: str) -> list[int]:
    """Return the partitions of a topic. Raises NoSuchTopic, ClientError, KafkaError."""
    admin = await cluster.admin()
    return sorted((await admin.topics.describe(topic)).partitions)


async def job_of(cluster: ShownCluster, topic: str, wanted: Wanted, kind: JobKind, **more: Any) -> Job:
    """Return the job of a search for the viewer of a cluster. Raises Unclear, ClientError, KafkaError."""
    admin = await cluster.admin()
    chosen = wanted.partitions(await partitions_of(cluster, topic), topic)
    job = Job(
        kind, ",".join(map(str, admin.cluster.bootstrap)), admin.cluster.config, topic, tuple(chosen), wanted,
        cluster.mask(topic), cluster.registry is not None, wanted.count,
    )  # fmt: skip
    return replace(job, **more)


def searching(
    request: Request, cluster: ShownCluster, job: Job
) -> AbstractAsyncContextManager[RunningSearch]:
    """Keep a search for the request."""
    schemas = None if cluster.registry is None else cluster.registry.schema
    return searches_of(request).open(job, cluster.name, viewer_of(request), schemas)


def searches_of(request: Request) -> Searches:
    """Return the searches of the console."""
    found: Searches = request.state.searches
    return found


async def rows_of(
    cluster: ShownCluster, topic: str, records: Iterable[Sequence[Any]], form: Form
) -> list[ShownRow]:
    """Return found records, which their search has masked, as rows of a page."""
    found = list(map(uncut, records))
    rows = await shown_records(
        cluster.registry, cluster.mask(topic), [record for record, _, _ in found], form, PART_BYTES
    )
    return [_with_lengths(row, form, key, value) for row, (_, key, value) in zip(rows, found, strict=True)]


def _with_lengths(row: ShownRow, form: Form, key_bytes: int, value_bytes: int) -> ShownRow:
    """Return a row whose parts say how long they are as a whole; no schema decodes a part."""
    record, key, value = row
    if record.key is not None and len(record.key) < key_bytes:
        key = shown_value(record.key, form, PART_BYTES, key_bytes)
    if record.value is not None and len(record.value) < value_bytes:
        value = shown_value(record.value, form, PART_BYTES, value_bytes)
    return record, key, value


# --- events


def is_of_another_site(request: Request) -> bool:
    """Whether a page of another site asks, or leads here."""
    return request.headers.get("sec-fetch-site") in ("cross-site", "same-site")


def refuse_other_sites(request: Request) -> None:
    """Raise HTTPException where another site asks for a search: each costs its brokers much."""
    if is_of_another_site(request):
        raise HTTPException(
            403, "searches and exports are for this console's pages: open the topic's records"
        )


@of_cluster
async def events(request: Request, cluster: ShownCluster) -> Response:
    """Send what a search finds, or what a tail sees, as events, until the browser goes away."""
    refuse_other_sites(request)
    topic = request.path_params["topic"]
    parts = _Events(request, cluster, topic).parts()
    return StreamedResponse(parts, "text/event-stream", {"cache-control": "no-store"})


class _Events:
    """The events of one search: rows as the page shows them, and how far it is."""

    def __init__(self, request: Request, cluster: ShownCluster, topic: str) -> None:
        self._request = request
        self._cluster = cluster
        self._topic = topic
        self._wanted = Wanted()
        self._shown = Shown(self._wanted)

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Return the events; the last one is `done` or `failed`."""
        try:
            job = await self._job()
            async with (
                searching(self._request, self._cluster, job) as search,
                aclosing(search.frames()) as frames,
            ):
                async for frame in frames:
                    for part in await self._of_frame(frame, search):
                        yield part
        except NoSuchTopic:
            yield event("failed", {"reason": f"there is no topic {self._topic!r}"})
        except (Unclear, ClientError, KafkaError, SearchFailed, TooManySearches) as error:
            yield event("failed", {"reason": " ".join(str(error).split())})

    async def _job(self) -> Job:
        self._wanted = wanted = wanted_records(self._request.query_params)
        self._shown = Shown(wanted)
        if not wanted.is_tail:
            return await job_of(self._cluster, self._topic, wanted, "search")
        positions = read_positions(self._request.headers.get("last-event-id", ""))
        return await job_of(self._cluster, self._topic, wanted, "tail", positions=positions)

    async def _of_frame(self, frame: Frame, search: RunningSearch) -> list[bytes]:
        match frame["kind"]:
            case "found":
                return await self._found(frame)
            case "done":
                state = {
                    **search.progress,
                    "is_queued": False,
                    "is_over": True,
                    "next": self._shown.next_link(),
                }
                return [
                    event("state", {"html": self._fragment("search_state", state=state)}),
                    event("done", {}),
                ]
            case kind:
                state = {**frame, "is_queued": kind == "queued", "is_over": False, "next": ""}
                html = self._fragment("search_state", state=state)
                return [event("state", {"html": html}, _identity(frame))]

    async def _found(self, frame: Frame) -> list[bytes]:
        rows = await rows_of(self._cluster, self._topic, frame["records"], self._wanted.form)
        identity = _identity(frame)
        if self._wanted.is_tail:
            rows.reverse()  # a tail grows at its top
        else:
            self._shown.add(record for record, _, _ in rows)
        parts = [event("rows", {"html": self._fragment("record_rows", rows=rows)}, identity)] if rows else []
        if missed := frame.get("missed"):
            html = self._fragment("missed", missed=missed)
            parts.append(event("missed", {"html": html, "count": sum(part[3] for part in missed)}, identity))
        return parts

    def _fragment(self, template: str, **values: Any) -> str:
        renderer: Renderer = self._request.app.state.renderer
        return renderer.fragment(
            template, cluster=self._cluster, topic=self._topic, wanted=self._wanted, **values
        )


def _identity(frame: Frame) -> str:
    """Return the place at which a tail goes on; "" for more than a browser sends back."""
    text = positions_text(frame.get("resume", {}))
    return text if len(text) <= MOST_POSITIONS else ""


# --- files


@of_cluster
async def export(request: Request, cluster: ShownCluster) -> Response:
    """Send a file with all records that an address asks for."""
    refuse_other_sites(request)
    topic, query = request.path_params["topic"], request.query_params
    file_format = query.get("format", "csv")
    if file_format not in FORMATS:
        raise HTTPException(404, f"there is no format {file_format!r}; there are {', '.join(FORMATS)}")
    try:
        wanted = replace(wanted_records(query), counts_all=False)
        most = min(int(text), MOST_EXPORTED) if is_whole(text := query.get("most", "")) else MOST_EXPORTED
        job = await job_of(cluster, topic, wanted, "export", most=most, file_format=file_format)
    except NoSuchTopic:
        raise HTTPException(404, f"there is no topic {topic!r} in cluster {cluster.name}") from None
    except Unclear as error:
        raise HTTPException(400, str(error)) from None
    except (ClientError, KafkaError) as error:
        raise HTTPException(503, " ".join(str(error).split())) from None
    headers = {
        **attachment(f"{topic}.{file_format}"),
        "cache-control": "no-store",
    }
    return StreamedResponse(
        _file(request, cluster, job), FORMATS[file_format], headers, (SearchFailed, TooManySearches)
    )


async def _file(request: Request, cluster: ShownCluster, job: Job) -> AsyncGenerator[bytes, None]:
    async with searching(request, cluster, job) as search, aclosing(search.frames()) as frames:
        async for frame in frames:
            if frame["kind"] == "data":
                yield frame["data"]


# --- those that run


@of_cluster
async def searches(request: Request, cluster: ShownCluster) -> Response:
    """Show the searches that run or wait, each with its progress."""
    known = searches_of(request)
    rows = [
        (search, known.age_s(search), may_cancel(cluster, search))
        for search in known.of_cluster(cluster.name)
        if cluster.may(topic=search.job.topic)
    ]
    title = f"Searches · {cluster.name}"
    return respond_with_form(request, "searches", title=title, cluster=cluster, rows=rows)


def may_cancel(cluster: ShownCluster, search: RunningSearch) -> bool:
    """Whether the viewer of a cluster may end a search: it is their own, or they operate its topic."""
    is_own = search.viewer.identity == cluster.viewer.identity
    return is_own or cluster.may(Role.OPERATOR, topic=search.job.topic)


@of_cluster
async def cancel_search(request: Request, cluster: ShownCluster) -> Response:
    """End a search; its page says that it was cancelled."""
    form, number = await read_form(request), request.path_params["search"]
    check_form(request, form.get("token", ""))
    search = searches_of(request).get(number)
    if search is None or search.cluster != cluster.name or not cluster.may(topic=search.job.topic):
        return RedirectResponse("../../searches", status_code=303)
    is_allowed = may_cancel(cluster, search)
    if is_allowed:
        search.cancel()
    facts = {"search": number, "topic": search.job.topic, "of": search.viewer.identity}
    outcome = "done" if is_allowed else "refused: it is another person's, and this needs an operator"
    await write_audit(request, cluster.name, "cancel-search", facts, outcome)
    return RedirectResponse("../../searches", status_code=303)
