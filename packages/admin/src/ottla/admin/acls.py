"""Access rules of a cluster: describe, create and delete them (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ottla.client.cluster import Cluster, raise_for
from ottla.client.errors import ALTER_CLUSTER, DESCRIBE_CLUSTER
from ottla.protocol.acls import Acl, Operation, PatternType, PermissionType, ResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """The rules that a call is about; without arguments all rules.

    A name with the pattern type MATCH stands for all rules that affect it: literal, `*` and prefixed ones.
    """

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission_type: PermissionType = PermissionType.ANY

    @classmethod
    def of(cls, acl: Acl) -> AclFilter:
        """Return the filter that matches one rule and no other."""
        return cls(**acl._asdict())


class Acls:
    """Rules of a cluster's authorizer. Calls raise SecurityDisabled if the brokers have none."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def describe(self, filter: AclFilter | None = None) -> list[Acl]:  # noqa: A002 - Kafka's word
        """Return the rules that a filter matches, sorted by resource and principal; without one, all."""
        wanted = filter or AclFilter()
        request = DescribeAclsRequest(
            resource_type_filter=wanted.resource_type,
            resource_name_filter=wanted.resource_name,
            pattern_type_filter=wanted.pattern_type,
            principal_filter=wanted.principal,
            host_filter=wanted.host,
            operation=wanted.operation,
            permission_type=wanted.permission_type,
        )

        async def ask() -> list[Acl]:
            response = await self._cluster.ask_any(request, DescribeAclsResponse)
            raise_for(response.error_code, response.error_message, DESCRIBE_CLUSTER)
            return sorted(acl for resource in response.resources for acl in _described(resource))

        return await self._cluster.retry("describing ACLs", ask)

    async def create(self, acls: Iterable[Acl]) -> None:
        """Add rules; those that exist already stay. Raises InvalidRequest naming a rule that is invalid."""
        wanted = list(acls)
        request = CreateAclsRequest(creations=[_creation(acl) for acl in wanted])

        async def ask() -> None:
            response = await self._cluster.send_to_any(request, CreateAclsResponse)
            for acl, result in zip(wanted, response.results, strict=True):
                if result.error_code != ErrorCode.NONE:
                    about = _about(acl, result.error_code, result.error_message)
                    raise_for(result.error_code, about, ALTER_CLUSTER)

        await self._cluster.retry("creating ACLs", ask)

    async def delete(self, filters: Iterable[AclFilter]) -> list[Acl]:
        """Delete the rules that any of the filters matches; return them, sorted."""
        request = DeleteAclsRequest(filters=[_deletion(wanted) for wanted in filters])

        async def ask() -> list[Acl]:
            response = await self._cluster.send_to_any(request, DeleteAclsResponse)
            deleted: set[Acl] = set()
            for result in response.filter_results:
                raise_for(result.error_code, result.error_message, ALTER_CLUSTER)
                for found in result.matching_acls:
                    acl = _deleted(found)
                    if found.error_code != ErrorCode.NONE:
                        raise_for(found.error_code, _about(acl, found.error_code, found.error_message))
                    deleted.add(acl)
            return sorted(deleted)

        return await self._cluster.retry("deleting ACLs", ask)


def _described(resource: DescribeAclsResource) -> Iterator[Acl]:
    for entry in resource.acls:
        yield Acl(
            ResourceType(resource.resource_type),
            resource.resource_name,
            PatternType(resource.pattern_type),
            entry.principal,
            entry.host,
            Operation(entry.operation),
            PermissionType(entry.permission_type),
        )


def _deleted(found: DeleteAclsMatchingAcl) -> Acl:
    return Acl(
        ResourceType(found.resource_type),
        found.resource_name,
        PatternType(found.pattern_type),
        found.principal,
        found.host,
        Operation(found.operation),
        PermissionType(found.permission_type),
    )


def _creation(acl: Acl) -> AclCreation:
    return AclCreation(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        resource_pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission_type,
    )


def _deletion(wanted: AclFilter) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.resource_name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission_type,
    )


def _about(acl: Acl, code: int, message: str | None) -> str:
    return f"{acl}: {message or ErrorCode(code).name}"
