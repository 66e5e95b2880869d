"""Access: users with passwords, rules, quotas, and the answer to "may X do Y?". Nothing secret is there."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ottla.admin import Acl, Admin, Operation, Quota, ResourceType, ScramCredential
from ottla.admin.access_checks import check_access
from ottla.client.errors import ClientError
from ottla.console.clusters.connections import ShownCluster
from ottla.console.pages import of_cluster, respond
from ottla.console.web.tables import table_view
from ottla.protocol.errors import KafkaError

T = TypeVar("T")

OPERATIONS: Final = tuple(
    operation.name
    for operation in Operation
    if operation not in (Operation.UNKNOWN, Operation.ANY, Operation.ALL)
)
RESOURCES: Final = ("TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN")
_MOST_NAME: Final = 249


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """One part of the page: what was found, or the reason why it cannot be read."""

    found: Sequence[T] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Access:
    """Users, rules and quotas of a cluster, each by itself: this login may see some and not others."""

    users: Part[ScramCredential]
    acls: Part[Acl]
    quotas: Part[Quota]


@dataclass(frozen=True, slots=True)
class Question:
    """May a principal perform an operation on a resource?"""

    principal: str = ""
    operation: str = "READ"
    kind: str = "TOPIC"
    name: str = ""
    host: str = ""

    @property
    def is_asked(self) -> bool:
        """Whether there is enough to answer."""
        return bool(self.principal and (self.name or self.kind == "CLUSTER"))


def question(query: Mapping[str, str]) -> Question:
    """Return the question that an address asks; a principal without a type is a user."""
    principal = query.get("principal", "").strip()[:_MOST_NAME]
    operation, kind = query.get("operation", "READ"), query.get("kind", "TOPIC")
    return Question(
        f"User:{principal}" if principal and ":" not in principal else principal,
        operation if operation in OPERATIONS else "READ",
        kind if kind in RESOURCES else "TOPIC",
        query.get("name", "").strip()[:_MOST_NAME],
        query.get("host", "").strip()[:_MOST_NAME],
    )


@of_cluster
async def access(request: Request, cluster: ShownCluster) -> Response:
    """Show users, rules and quotas, and answer the question of the form."""
    view = table_view(request.query_params)
    asked = question(request.query_params)
    sample = await cluster.ask(("access",), _read)
    words = view.text.lower().split()
    acls = [acl for acl in sample.value.acls.found if all(word in str(acl).lower() for word in words)]
    answer = await _answer(cluster, asked) if asked.is_asked else None
    return respond(
        request,
        "access",
        title=f"Access · {cluster.name}",
        cluster=cluster,
        sample=sample,
        access=sample.value,
        acls=acls,
        view=view,
        asked=asked,
        answer=answer,
        operations=OPERATIONS,
        resources=RESOURCES,
    )


async def _read(admin: Admin) -> Access:
    return Access(
        await _part(admin.users.describe()),
        await _part(admin.acls.describe()),
        await _part(admin.quotas.describe()),
    )


async def _part(question: Awaitable[Sequence[T]]) -> Part[T]:
    try:
        return Part(await question)
    except (ClientError, KafkaError) as error:
        return Part((), " ".join(str(error).split()) or type(error).__name__)


async def _answer(cluster: ShownCluster, asked: Question) -> tuple[bool | None, str]:
    """Return whether it is allowed, None where that cannot be found out, and the reason."""
    name = "kafka-cluster" if asked.kind == "CLUSTER" else asked.name
    try:
        allowed, reason, _ = await check_access(
            await cluster.admin(), asked.principal, asked.host or None, Operation[asked.operation],
            ResourceType[asked.kind], name,
        )  # fmt: skip
    except (ClientError, KafkaError) as error:
        return None, " ".join(str(error).split())
    return allowed, reason
