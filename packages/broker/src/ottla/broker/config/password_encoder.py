"""The settings by which dynamic passwords are encrypted in ZooKeeper, with Kafka's names of algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.client.config_definition import at_least, one_of, setting
from ottla.zookeeper.frozen_classes import field_group

DIGESTS: Final[Mapping[str, str]] = {
    "PBKDF2WithHmacSHA1": "sha1",
    "PBKDF2WithHmacSHA224": "sha224",
    "PBKDF2WithHmacSHA256": "sha256",
    "PBKDF2WithHmacSHA384": "sha384",
    "PBKDF2WithHmacSHA512": "sha512",
}
"""The ways to derive a key, under Java's names, each with the digest that it uses."""
DEFAULT_KEY_FACTORY: Final = "PBKDF2WithHmacSHA512"
CBC: Final = "AES/CBC/PKCS5Padding"
GCM: Final = "AES/GCM/NoPadding"
KEY_BITS: Final = (128, 192, 256)
MOST_ITERATIONS: Final = 10_000_000
"""They take some seconds."""


def _key_length(bits: int) -> str | None:
    return None if bits in KEY_BITS else f"must be one of {', '.join(map(str, KEY_BITS))}, the keys of AES"


def _iterations(count: int) -> str | None:
    return None if count <= MOST_ITERATIONS else f"must be at most {MOST_ITERATIONS}"


@field_group
class PasswordEncoderSettings:
    """The part of `BrokerConfig` about passwords in ZooKeeper."""

    password_encoder_secret: str | None = setting(
        None,
        "The secret that encrypts dynamic passwords in ZooKeeper, as that of a key store or a JAAS line; "
        "without one they cannot be set while the broker runs.",
        is_secret=True,
    )
    password_encoder_old_secret: str | None = setting(
        None,
        "The secret before the present one: at the start, passwords that it encrypted are encrypted again.",
        is_secret=True,
    )
    password_encoder_keyfactory_algorithm: str | None = setting(
        None,
        f"How keys are derived from the secret: one of {', '.join(DIGESTS)}; by default the last one.",
        one_of(*DIGESTS),
    )
    password_encoder_cipher_algorithm: str = setting(
        CBC, f"The cipher of passwords: {CBC} or {GCM}.", one_of(CBC, GCM)
    )
    password_encoder_key_length: int = setting(128, "Bits of the key.", _key_length)
    password_encoder_iterations: int = setting(
        4_096, "Iterations by which the key is derived.", at_least(1024), _iterations
    )


class UndecodablePassword(ValueError):
    """A text is no encrypted password, or was encrypted with another secret. The message has no secret."""
