"""SCRAM credentials of users: describe, set and delete them (KIP-554).

A password never leaves this process: the broker gets its salted hash, and that is what it stores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from ottla.client.cluster import Cluster, raise_for
from ottla.client.environment import random_bytes
from ottla.client.errors import ALTER_CLUSTER, DESCRIBE_CLUSTER
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)

ScramMechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]

_CODES: Final[dict[ScramMechanism, int]] = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_NAMES: Final = {code: name for name, code in _CODES.items()}
_HASHES: Final[dict[ScramMechanism, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

MIN_ITERATIONS: Final = 4_096
MAX_ITERATIONS: Final = 16_384
"""The limits of Kafka's brokers."""
_SALT_BYTES: Final = 24


@dataclass(frozen=True, slots=True, order=True)
class ScramCredential:
    """A credential that a user has; brokers never return its secrets."""

    user: str
    mechanism: str
    iterations: int


class Users:
    """Users with SCRAM credentials; brokers since 2.7 serve these requests."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def describe(self, users: Iterable[str] | None = None) -> list[ScramCredential]:
        """Return the credentials of some users, or of all, sorted. Raises ResourceNotFound for a stranger."""
        names = None if users is None else [UserName(name=name) for name in users]
        request = DescribeUserScramCredentialsRequest(users=names)

        async def ask() -> list[ScramCredential]:
            response = await self._cluster.ask_any(request, DescribeUserScramCredentialsResponse)
            raise_for(response.error_code, response.error_message, DESCRIBE_CLUSTER)
            found: list[ScramCredential] = []
            for result in response.results:
                raise_for(result.error_code, _about(result.user, result.error_code, result.error_message))
                found += (
                    ScramCredential(result.user, _NAMES.get(info.mechanism, "UNKNOWN"), info.iterations)
                    for info in result.credential_infos
                )
            return sorted(found)

        return await self._cluster.retry("describing SCRAM credentials", ask)

    async def set_password(
        self,
        user: str,
        password: str,
        mechanism: ScramMechanism = "SCRAM-SHA-512",
        *,
        iterations: int = MIN_ITERATIONS,
    ) -> None:
        """Create the credential of a user, or replace it. Raises UnacceptableCredential.

        Other mechanisms of the user keep their passwords.
        """
        salt = random_bytes(_SALT_BYTES)
        salted = hashlib.pbkdf2_hmac(_HASHES[mechanism], password.encode(), salt, iterations)
        upsertion = ScramCredentialUpsertion(
            name=user,
            mechanism=_CODES[mechanism],
            iterations=iterations,
            salt=salt,
            salted_password=salted,
        )
        await self._alter(AlterUserScramCredentialsRequest(upsertions=[upsertion]))

    async def delete(self, user: str, mechanisms: Iterable[ScramMechanism]) -> None:
        """Delete credentials of a user, one after the other. Raises ResourceNotFound for a missing one."""
        for mechanism in mechanisms:  # brokers with KRaft accept a user only once in a request
            deletion = ScramCredentialDeletion(name=user, mechanism=_CODES[mechanism])
            await self._alter(AlterUserScramCredentialsRequest(deletions=[deletion]))

    async def _alter(self, request: AlterUserScramCredentialsRequest) -> None:
        async def ask() -> None:
            response = await self._cluster.send_to_controller(request, AlterUserScramCredentialsResponse)
            for result in response.results:
                about = _about(result.user, result.error_code, result.error_message)
                self._cluster.raise_controller_error(result.error_code, about, ALTER_CLUSTER)

        await self._cluster.retry("changing SCRAM credentials", ask)


def _about(user: str, code: int, message: str | None) -> str:
    return f"user {user!r}: {message or ErrorCode(code).name}"
