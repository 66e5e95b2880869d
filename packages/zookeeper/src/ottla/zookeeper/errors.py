"""Errors of ZooKeeper, one type each, with path and detail."""

from __future__ import annotations


class ZooKeeperError(Exception):
    """The base of all errors of this package.

    `code` is ZooKeeper's error number, 0 without one. `retriable`: the same call may succeed later.
    `outcome_unknown`: the server may have executed the write although no response arrived; read back before
    deciding. `operation_index` is the failed operation of a `multi`, None elsewhere.
    """

    code = 0
    retriable = False
    outcome_unknown = False

    def __init__(self, path: str = "", detail: str = "", *, operation_index: int | None = None) -> None:
        super().__init__(path, detail)
        self.path = path
        self.detail = detail
        self.operation_index = operation_index

    def __str__(self) -> str:
        at = f" (operation {self.operation_index})" if self.operation_index is not None else ""
        return ": ".join(part for part in (type(self).__name__ + at, self.path, self.detail) if part)


class NodeExists(ZooKeeperError):
    """The path to create exists."""

    code = -110


class NoNode(ZooKeeperError):
    """The path, or for a create its parent, does not exist."""

    code = -101


class BadVersion(ZooKeeperError):
    """The znode's version is not the expected one: another client wrote meanwhile."""

    code = -103


class NotEmpty(ZooKeeperError):
    """A znode with children cannot be deleted."""

    code = -111


class NoChildrenForEphemerals(ZooKeeperError):
    """An ephemeral znode cannot have children."""

    code = -108


class SessionExpired(ZooKeeperError):
    """The session the operation was decided in is over; decide again in the new one."""

    code = -112


class ConnectionLoss(ZooKeeperError):
    """There is no connection, or it broke before the response."""

    code = -4
    retriable = True
    outcome_unknown = True


class OperationTimeout(ZooKeeperError):
    """The operation's deadline passed without a response."""

    code = -7
    retriable = True
    outcome_unknown = True


class NoAuth(ZooKeeperError):
    """The znode's ACL does not allow the operation to this session."""

    code = -102


class AuthFailed(ZooKeeperError):
    """The server refused the credentials."""

    code = -115


class InvalidAcl(ZooKeeperError):
    """The ACL is empty, or has a scheme that the server does not know."""

    code = -114


class BadArguments(ZooKeeperError):
    """ZooKeeper does not accept the path or another argument."""

    code = -8


class Unimplemented(ZooKeeperError):
    """The server does not support the operation."""

    code = -6


class Marshalling(ZooKeeperError):
    """A request or a response could not be decoded."""

    code = -5


class NotStored(ZooKeeperError):
    """The server cannot store a change now, because its disk is full; nothing was changed."""

    code = -1
    retriable = True


class RuntimeInconsistency(ZooKeeperError):
    """An operation of a `multi` was not executed because an earlier one failed."""

    code = -2


class ValueTooLarge(ZooKeeperError):
    """The value is larger than ZooKeeper allows; sending it would drop the connection."""


class IllegalName(ZooKeeperError, ValueError):
    """A name cannot be a component of a path."""


class MalformedZnode(ZooKeeperError, ValueError):
    """The data of a znode is not of the form its path requires."""


class Unavailable(ZooKeeperError):
    """ZooKeeper could not be reached or started in time."""

    retriable = True


class UnsafeSecret(ZooKeeperError):
    """A file of credentials could have been read or replaced by others; the message says what to do."""

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


class NotConnected(Unavailable):
    """No server answered in the time for opening a session; `path` is the list of servers."""

    def __init__(self, hosts: str, timeout_s: float, trouble: str = "") -> None:
        super().__init__(hosts, f"not connected within {timeout_s:g} s")
        self.trouble = trouble

    def __str__(self) -> str:
        if self.trouble:
            return f"no connection to ZooKeeper at {self.path} ({self.detail}): {self.trouble}"
        return (
            f"no ZooKeeper server answers at {self.path} ({self.detail}): start one there, or correct the "
            "host and port in zookeeper.connect"
        )


_BY_CODE: dict[int, type[ZooKeeperError]] = {
    cls.code: cls
    for cls in (
        NodeExists,
        NoNode,
        BadVersion,
        NotEmpty,
        NoChildrenForEphemerals,
        SessionExpired,
        ConnectionLoss,
        OperationTimeout,
        NoAuth,
        AuthFailed,
        InvalidAcl,
        BadArguments,
        Unimplemented,
        Marshalling,
        NotStored,
        RuntimeInconsistency,
    )
}


def error_for(code: int, path: str = "", *, operation_index: int | None = None) -> ZooKeeperError:
    """Return the error for ZooKeeper's number `code`, a plain `ZooKeeperError` for an unknown one."""
    cls = _BY_CODE.get(code)
    if cls is not None:
        return cls(path, operation_index=operation_index)
    return ZooKeeperError(path, f"code {code}", operation_index=operation_index)
