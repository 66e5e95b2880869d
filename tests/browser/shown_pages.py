"""The pages of the console, one entry each.

A new page gets an entry here: `test_pages.py` fails for a route that has none.
"""

from __future__ import annotations

from dataclasses import dataclass
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


CONNECTOR = "connect=etl&name=copy-orders"
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
    ShownPage("groups", "/c/local/groups", ("billing", "shipping", "Oldest unread")),
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
    ShownPage("connector", f"/c/local/connect/connector?{CONNECTOR}", ("no table", "JdbcSource")),
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
