"""Alerts: those that stand, their silences, the rules, where they are sent, and the history."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Final, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ottla.client.environment import now_ms
from ottla.console.clusters.connections import ShownClusters
from ottla.console.logins.access import Need, Role, Viewer
from ottla.console.pages import check_form, clusters_of, respond, respond_with_form, viewer_of
from ottla.console.pages.changes import check_allowed, read_form, write_audit
from ottla.console.watch.alert_store import MOST_SILENCES, StoredAlerts
from ottla.console.watch.alerts import Alert, Event, Silence, moment
from ottla.console.watch.rule_files import GROUP_KINDS
from ottla.console.web.fields import Unclear, named, time_ms

SHOWN_EVENTS: Final = 200
MOST_DAYS: Final = 366
_MOST_TEXT: Final = 500
_HOURS: Final = {"for 1 hour": 1, "for 8 hours": 8, "for 1 day": 24, "for 7 days": 168}
_UNTIL: Final = "until the time below"
_TOPIC_KINDS: Final = ("silent_topic", "under_replicated", "offline", "no_leader", "unclean_election")

T = TypeVar("T", Alert, Event)


def alerts_of(request: Request) -> StoredAlerts:
    """Return the alerts of the console."""
    found: StoredAlerts = request.state.alerts
    return found


async def alerts(request: Request) -> Response:
    """Show the alerts of the clusters, groups and topics that the viewer may see."""
    stored, viewer, now_s = alerts_of(request), viewer_of(request), now_ms() // 1_000
    kinds = {rule.name: rule.kind for rule in stored.alerts.rules}
    standing = _seen(viewer, kinds, stored.alerts.raised)
    sees_rules = any(cluster.may() for cluster in clusters_of(request))
    events = [event for event in stored.alerts.events if event.kind in ("raised", "cleared")]
    return respond(
        request,
        "alerts",
        title="Alerts",
        raised=[(alert, stored.alerts.silence_of(alert, now_s)) for alert in standing],
        rules=stored.alerts.rules if sees_rules else (),
        events=sorted(
            [*_seen(viewer, kinds, events), *_of_silences(viewer, stored.alerts.events)],
            key=lambda event: -event.at_s,
        )[:SHOWN_EVENTS],
        silences=[
            silence
            for silence in stored.alerts.silences
            if silence.until_s > now_s and viewer.may(_need(Role.VIEWER, silence.cluster))
        ],
        outboxes=stored.outboxes if sees_rules else (),
        may_silence=request.app.state.allows_changes and viewer.may(Need(Role.OPERATOR)),
        now_s=now_s,
    )


def _seen(viewer: Viewer, kinds: Mapping[str, str], found: Iterable[T]) -> list[T]:
    return [item for item in found if viewer.may(_need_of(kinds, item))]


def _need_of(kinds: Mapping[str, str], item: Alert | Event) -> Need:
    """Return the right to see an alert; one of a rule that is gone needs the whole cluster."""
    kind = item.rule.kind if isinstance(item, Alert) else kinds.get(item.rule, "")
    if kind in GROUP_KINDS:
        return Need(cluster=item.cluster, group=item.subject)
    if kind in _TOPIC_KINDS:
        return Need(cluster=item.cluster, topic=item.subject)
    return Need(cluster=item.cluster, is_whole=True)


def _of_silences(viewer: Viewer, events: Iterable[Event]) -> list[Event]:
    return [
        event
        for event in events
        if event.kind not in ("raised", "cleared") and viewer.may(_need(Role.VIEWER, event.cluster))
    ]


def _need(role: Role, cluster: str) -> Need:
    """Return the right over a cluster as a silence names it; a pattern needs a right over all clusters."""
    return Need(role, cluster, is_whole=True)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The form of a silence as it was sent, and why it is not clear yet."""

    form: Mapping[str, str]
    silence: Silence | None = None
    unclear: str = ""


def _wanted(form: Mapping[str, str], author: str, now_s: int) -> _Wanted:
    try:
        rule, cluster = named(form, "rule", "the rule"), named(form, "cluster", "the cluster")
        subject, reason = named(form, "subject", "the subject"), named(form, "reason", "the reason")
        until_s = _until_s(form, now_s)
    except Unclear as error:
        return _Wanted(form, unclear=str(error))
    if max(map(len, (rule, cluster, subject, reason))) > _MOST_TEXT:
        return _Wanted(form, unclear=f"names and the reason have at most {_MOST_TEXT} letters")
    return _Wanted(form, Silence(rule, cluster, subject, now_s, until_s, reason, author))


def _until_s(form: Mapping[str, str], now_s: int) -> int:
    lasts = form.get("lasts", "")
    until_s = now_s + _HOURS[lasts] * 3_600 if lasts in _HOURS else time_ms(form.get("until", "")) // 1_000
    if not now_s < until_s <= now_s + MOST_DAYS * 86_400:
        raise Unclear(f"the end must be a time within the next {MOST_DAYS} days")
    return until_s


async def silence(request: Request) -> Response:
    """Show the form of a silence with what it would silence; with POST, begin it, or end one."""
    await check_allowed(request, "", "silence")
    if request.method == "POST":
        return await _do(request)
    return _show(request, _wanted(dict(request.query_params), _author(request), now_ms() // 1_000))


def _author(request: Request) -> str:
    return viewer_of(request).name or _client(request)


def _client(request: Request) -> str:
    return request.client.host if request.client else "unknown"


def _show(request: Request, wanted: _Wanted, *, failure: str = "") -> Response:
    stored, now_s = alerts_of(request), now_ms() // 1_000
    kinds = {rule.name: rule.kind for rule in stored.alerts.rules}
    standing = _seen(viewer_of(request), kinds, stored.alerts.raised)
    return respond_with_form(
        request,
        "silence",
        status=400 if failure else 200,
        title="Silence alerts",
        is_live=False,
        form=wanted.form,
        silence=wanted.silence,
        until="" if wanted.silence is None else moment(wanted.silence.until_s),
        covered=[alert for alert in standing if wanted.silence and wanted.silence.covers(alert, now_s)],
        lasts=(*_HOURS, _UNTIL),
        unclear=wanted.unclear,
        failure=failure,
    )


async def _do(request: Request) -> Response:
    form = await read_form(request)
    token, stored = form.pop("token", ""), alerts_of(request)
    name, cluster = ("end-silence" if "end" in form else "silence"), form.get("cluster", "")
    if (ended := _ended(stored, form)) is not None:
        cluster = ended.cluster
    audit = partial(write_audit, request, cluster, name, form)
    try:
        check_form(request, token)
        if "end" not in form:
            return await _begin(request, stored, form, audit)
        await _end(request, stored, ended, audit)
    except HTTPException as error:
        await audit(f"refused: {error.detail}")
        raise
    return RedirectResponse("../alerts", 303)


_Audit = Callable[[str], Awaitable[None]]


async def _begin(request: Request, stored: StoredAlerts, form: Mapping[str, str], audit: _Audit) -> Response:
    wanted = _wanted(form, _author(request), now_ms() // 1_000)
    failure = wanted.unclear
    if wanted.silence is not None:
        _check_may(request, wanted.silence.cluster)
        if len(stored.alerts.silences) >= MOST_SILENCES:
            failure = f"there are {MOST_SILENCES} silences already: end some first"
    if wanted.silence is None or failure:
        await audit(f"refused: {failure}")
        return _show(request, wanted, failure=failure)
    await audit("begins")
    try:
        await stored.silence(wanted.silence)
    except sqlite3.Error as error:
        await audit(f"failed: {error}")
        return _show(request, wanted, failure=f"the silence cannot be kept: {error}")
    await audit(f"done: until {moment(wanted.silence.until_s)}")
    return RedirectResponse("../alerts", 303)


def _ended(stored: StoredAlerts, form: Mapping[str, str]) -> Silence | None:
    """Return the silence that a form ends; None for one that is over already."""
    number = form.get("end", "")
    return next((silence for silence in stored.alerts.silences if str(silence.id) == number), None)


async def _end(request: Request, stored: StoredAlerts, ended: Silence | None, audit: _Audit) -> None:
    if ended is None:
        await audit("refused: there is no such silence any more")
        return
    _check_may(request, ended.cluster)
    await audit("begins")
    await stored.end_silence(ended.id, now_ms() // 1_000, _author(request))
    await audit(f"done: {ended.rule}, about {ended.subject}")


def may_silence(viewer: Viewer, cluster: str, known: Iterable[str]) -> bool:
    """Whether a viewer may silence alerts of a cluster; a pattern needs a right over each that it names.

    The pattern itself is not enough: a right over `prod-?` has the name `prod-*`, which is of more clusters.
    """
    named = {name for name in known if fnmatchcase(name, cluster)}
    return all(viewer.may(_need(Role.OPERATOR, name)) for name in {cluster, *named})


def _check_may(request: Request, cluster: str) -> None:
    clusters: ShownClusters = request.state.clusters
    if not may_silence(viewer_of(request), cluster, [shown.name for shown in clusters]):
        raise HTTPException(403, f"alerts of cluster {cluster!r} may be silenced by its operators only")
