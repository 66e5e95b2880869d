"""The pages of the console, one entry each, and its changes, one entry each.

A new page or change gets an entry here: `test_pages.py` fails for a route or a change that has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from browser.demo import HOSTILE_GROUP
from browser.running import BOUND_MS, KINDS


@dataclass(frozen=True)
class ShownPage:
    """A page: its address below the console's, its route if that differs, and words that stand on it."""

    name: str
    path: str
    sees: tuple[str, ...]
    route: str = ""
    kinds: tuple[str, ...] = KINDS


_CONNECTOR = "connect=etl&name=copy-orders"
_TOPICS, _TOPIC = "/c/{cluster}/topics", "/c/{cluster}/topics/{topic}"

PAGES: Final = (
    ShownPage("clusters", "/", ("Brokers", "Topics")),
    ShownPage("alerts", "/alerts", ("Alerts", "Rules", "History")),
    ShownPage("silence", "/alerts/silence", ("Silence alerts", "How long", "Preview")),
    ShownPage("cluster", "/c/local/", ("Brokers", "Log directories", "leader", "controller")),
    ShownPage("topics", "/c/local/topics", ("orders", "payments", "Size with replicas")),
    ShownPage("found topics", "/c/local/topics?q=ord&order=size&down=1", ("orders-dead",), _TOPICS),
    ShownPage("no topic", "/c/local/topics?q=nothing-has-this", ("No topic has",), _TOPICS),
    ShownPage("internal topics", "/c/local/topics?internal=1", ("__consumer_offsets",), _TOPICS),
    ShownPage("topic", "/c/local/topics/orders", ("Partitions", "retention.ms", "604800000", "End offset")),
    ShownPage("records", "/c/local/topics/orders/records", ("customer-", "90071992547", "2 headers")),
    ShownPage("odd records", "/c/local/topics/audit/records", ("onerror", "Oslo"), f"{_TOPIC}/records"),
    ShownPage(
        "transactional records", "/c/local/topics/invoices/records?from=beginning",
        ("aborted", "commit marker", "abort marker"), f"{_TOPIC}/records",
    ),
    ShownPage("searches", "/c/local/searches", ("Searches", "Offsets read")),
    ShownPage("compared", "/c/local/topics/orders/compare?a=0-0&b=0-1", ("Two records of", "city")),
    ShownPage("record", "/c/local/topics/audit/record?partition=0&offset=0", ("onerror", "Headers", "Key")),
    ShownPage("groups", "/c/local/groups", ("billing", "shipping", "Lag in records")),
    ShownPage("group", "/c/local/group?name=billing", ("Committed", "orders-0", "No member reads")),
    ShownPage("odd group", f"/c/local/group?name={HOSTILE_GROUP}", ("evil<script>",), "/c/{cluster}/group"),
    ShownPage("streams", "/c/local/streams", ("Streams and pipelines", "orders-dead")),
    ShownPage("dead letters", "/c/local/topics/orders-dead/dead-letters", ("Dead letters", "no such city")),
    ShownPage("transactions", "/c/local/transactions?all=1", ("invoicing-1", "CompleteAbort")),
    ShownPage("reassignments", "/c/local/reassignments", ("Reassignments",)),
    ShownPage("versions", "/c/local/versions", ("Versions", "Features")),
    ShownPage("znodes", "/c/local/znodes", ("Znodes", "names ZooKeeper")),
    ShownPage("registry", "/c/local/registry", ("orders-value",)),
    ShownPage("subject", "/c/local/registry/subject?name=orders-value", ("orders-value", "note")),
    ShownPage("schema", "/c/local/registry/schema?id=1", ("Order",)),
    ShownPage("connect", "/c/local/connect", ("copy-orders", "etl")),
    ShownPage("connector", f"/c/local/connect/connector?{_CONNECTOR}", ("no table", "JdbcSource")),
    ShownPage("settings", "/c/local/settings?all=1", ("log.retention.hours", "num.partitions")),
    ShownPage("access", "/c/local/access", ("May X do Y?", "Rules", "Quotas")),
    ShownPage("not there", "/c/local/topics/none-such", ("Not Found", "none-such"), _TOPIC),
)  # fmt: skip

WITHOUT_A_PAGE: Final = frozenset(
    {"/health", "/metrics", "/c/{cluster}/points", "/c/{cluster}/registry/check", "/static"}
    | {"/c/{cluster}/searches/{search}/cancel", "/c/{cluster}/topics/{topic}/records/events"}
    | {"/c/{cluster}/topics/{topic}/records/export"}
    | {"/login/oidc", "/logout"}
)
"""Routes that serve no page."""

LOGIN_PAGES: Final = (
    ShownPage("login", "/login?next=/alerts", ("Log in", "Name", "Password", "Log in with Example")),
    ShownPage("logged out", "/login?left=1", ("You are logged out", "Password")),
    ShownPage("foreign way back", "/login/oidc/callback?code=c&state=s", ("did not begin in this browser",)),
)
"""Pages of a console with logins, for strangers; `test_logins.py` shows them."""


def opened(page: Any, shown: ShownPage) -> None:
    """Open a page; return once all that it must show is there."""
    page.goto(shown.path)
    content = page.locator("#content")
    for words in shown.sees:
        content.get_by_text(words).filter(visible=True).first.wait_for(timeout=BOUND_MS)


@dataclass(frozen=True)
class DrivenChange:
    """A change: what is typed into its form, what the preview shows, and what is there when it is done."""

    name: str
    query: str
    fields: Mapping[str, str] = field(default_factory=dict)
    previews: str = ""
    typed: str = ""
    done: str = ""
    sees: tuple[str, str] | None = None
    """A page and words on it afterwards."""
    kinds: tuple[str, ...] = KINDS
    unclear: str = ""
    """Why there is nothing to change in the demo; it is driven no further."""


CHANGES: Final = (
    DrivenChange(
        "create-topic", "",
        {"topic": "fresh", "partitions": "2", "replicas": "1", "settings": "retention.ms=7200000"},
        "Topic fresh gets these replicas", done="Topic fresh is created with 2 partitions",
        sees=("/c/local/topics/fresh", "7200000"),
    ),
    DrivenChange(
        "copy-settings", "topic=fresh", {"other": "clicks"}, "retention.ms",
        done="1 settings of clicks are as those of fresh", sees=("/c/local/topics/clicks", "7200000"),
    ),
    DrivenChange(
        "add-partitions", "topic=fresh", {"total": "3"}, "1 more partitions, 3 in all", "fresh",
        "Topic fresh has 3 partitions now",
    ),
    DrivenChange(
        "set-topic-setting", "topic=fresh", {"key": "retention.ms", "value": "3600000"},
        "retention.ms of topic fresh", done="retention.ms of fresh is 3600000 now",
        sees=("/c/local/topics/fresh", "3600000"),
    ),
    DrivenChange(
        "produce", "topic=fresh",
        {"partition": "1", "key": "k", "value": '{"by":"browser"}', "headers": "trace=7"},
        "Topic fresh gets a record with 16 bytes", done="The record is at offset 0 of fresh-1",
        sees=("/c/local/topics/fresh/records", "browser"),
    ),
    DrivenChange(
        "delete-records", "topic=fresh", {"partition": "1"}, "These offsets are deleted for good", "fresh",
        "The records of fresh are deleted", ("/c/local/topics/fresh/records", "No records there"),
    ),
    DrivenChange(
        "reset-group", "group=shipping", {"topic": "payments", "to": "the oldest record"},
        "Group shipping goes on at these offsets", "shipping", "Group shipping goes on at the offsets",
        ("/c/local/group?name=shipping", "payments-0"),
    ),
    DrivenChange(
        "delete-group", "group=shipping", {}, "Group shipping is deleted with its commits", "shipping",
        "Group shipping is deleted", ("/c/local/groups", "billing"),
    ),
    DrivenChange(
        "delete-topic", "topic=fresh", {}, "Topic fresh is deleted with its 3 partitions", "fresh",
        "Topic fresh is deleted", ("/c/local/topics", "orders"),
    ),
    DrivenChange(
        "reassign", "", {"lines": "clicks:0=2,1"}, "Other replicas, or another order, for 1 partition",
        done="The move of 1 partition began", kinds=("three",),
    ),
    DrivenChange(
        "abort-transaction", "topic=invoices&partition=0&offset=0",
        unclear="no transaction that begins at offset 0 is open",
    ),
    DrivenChange("cancel-reassignment", "partition=all", unclear="nothing moves any more"),
    DrivenChange("elect-preferred", "topic=shipments", unclear="led by its first replica"),
    DrivenChange(
        "register-schema", "subject=orders-value",
        {"schema": '{"type":"record","name":"Order","fields":[{"name":"city","type":"string"}]}'},
        "orders-value", done="The schema has the id 3 in orders-value",
        sees=("/c/local/registry/subject?name=orders-value", "city"),
    ),
    DrivenChange(
        "set-compatibility", "subject=orders-value", {"level": "FULL"}, "are checked by FULL",
        done="The compatibility level of", sees=("/c/local/registry/subject?name=orders-value", "FULL"),
    ),
    DrivenChange(
        "pause-connector", _CONNECTOR, {}, "its tasks wait where they are", done="copy-orders pauses",
        sees=(f"/c/local/connect/connector?{_CONNECTOR}", "PAUSED"),
    ),
    DrivenChange("resume-connector", _CONNECTOR, {}, "copy-orders", done="Connector copy-orders"),
    DrivenChange("restart-connector", _CONNECTOR, {"parts": "the connector"}, "copy-orders", done="Re"),
    DrivenChange("restart-task", f"{_CONNECTOR}&task=0", {}, "copy-orders", done="Task 0 of copy-orders"),
    DrivenChange(
        "set-connector-setting", _CONNECTOR, {"key": "topic", "value": "payments"}, "payments",
        done="topic of copy-orders is changed",
    ),
    DrivenChange("stop-connector", _CONNECTOR, {}, "ends its tasks", done="copy-orders stops"),
    DrivenChange(
        "create-connector", "connect=etl", {"name": "second", "config": "connector.class=JdbcSource"},
        "second", done="Connector second is created",
    ),
    DrivenChange(
        "delete-connector", "connect=etl&name=second", {}, "second", "second", "second is deleted",
        ("/c/local/connect", "copy-orders"),
    ),
    DrivenChange(
        "delete-subject", "subject=orders-value", {}, "orders-value", "orders-value", "Deleted",
        ("/c/local/registry", "No subject"),
    ),
)  # fmt: skip
