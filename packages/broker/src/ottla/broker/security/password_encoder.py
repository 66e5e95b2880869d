"""Passwords in znodes, as Kafka's PasswordEncoder writes and reads them.

A password is encrypted with a key that is derived from a secret and a random salt. Its text lists all that
another broker needs to decrypt it, but for the secret: `name:value` separated by commas.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping
from typing import Final

from ottla.broker.config.password_encoder import (
    CBC,
    DEFAULT_KEY_FACTORY,
    DIGESTS,
    GCM,
    KEY_BITS,
    MOST_ITERATIONS,
    PasswordEncoderSettings,
    UndecodablePassword,
)

_SALT_BYTES: Final = 256
_BLOCK_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_TAG_BITS: Final = 128


class PasswordEncoder:
    """Encrypts and decrypts passwords with one secret. Each takes milliseconds: call it on a thread."""

    def __init__(
        self, secret: str, settings: PasswordEncoderSettings, random_bytes: Callable[[int], bytes]
    ) -> None:
        """`settings` say how to encrypt; decrypting goes by what each text says."""
        self._secret = secret.encode()
        self._key_factory = settings.password_encoder_keyfactory_algorithm or DEFAULT_KEY_FACTORY
        self._cipher = settings.password_encoder_cipher_algorithm
        self._key_bits = settings.password_encoder_key_length
        self._iterations = settings.password_encoder_iterations
        self._random_bytes = random_bytes

    def encode(self, password: str) -> str:
        """Return the text for a znode."""
        salt = self._random_bytes(_SALT_BYTES)
        key = self._derive(self._key_factory, salt, self._iterations, self._key_bits)
        vector = self._random_bytes(_NONCE_BYTES if self._cipher == GCM else _BLOCK_BYTES)
        encrypted = (_encrypt_gcm if self._cipher == GCM else _encrypt_cbc)(key, vector, password.encode())
        values = {
            "keyFactoryAlgorithm": self._key_factory,
            "cipherAlgorithm": self._cipher,
            "keyLength": self._key_bits,
            "salt": _base64(salt),
            "iterations": self._iterations,
            "encryptedPassword": _base64(encrypted),
            "passwordLength": _java_length(password),
            "initializationVector": _base64(vector),
            **({"authenticationTagLength": _TAG_BITS} if self._cipher == GCM else {}),
        }
        return ",".join(f"{name}:{value}" for name, value in values.items())

    def decode(self, text: str) -> str:
        """Return the password in a text of a znode. Raises `UndecodablePassword`."""
        values = _parse(text)
        try:
            password = self._decrypt(values).decode()
            length = int(values["passwordLength"])
        except UndecodablePassword:
            raise
        except KeyError as error:
            raise UndecodablePassword(f"has no {error.args[0]}") from None
        except (ValueError, OverflowError, binascii.Error) as error:
            # The text of such an error may have a part of the password.
            raise UndecodablePassword(
                f"was not encrypted with this secret ({type(error).__name__})"
            ) from None
        if _java_length(password) != length:
            raise UndecodablePassword("was not encrypted with this secret: its length differs")
        return password

    def _decrypt(self, values: Mapping[str, str]) -> bytes:
        cipher, bits, iterations = (
            values["cipherAlgorithm"],
            int(values["keyLength"]),
            int(values["iterations"]),
        )
        key_factory = values["keyFactoryAlgorithm"]
        if cipher not in (CBC, GCM) or key_factory not in DIGESTS or bits not in KEY_BITS:
            raise UndecodablePassword(
                f"has an unknown algorithm: {cipher!r} with {key_factory!r}, {bits} bits"
            )
        if not 0 < iterations <= MOST_ITERATIONS:
            raise UndecodablePassword(f"has {iterations} iterations, not 1 to {MOST_ITERATIONS}")
        key = self._derive(key_factory, base64.b64decode(values["salt"]), iterations, bits)
        vector = base64.b64decode(values["initializationVector"])
        encrypted = base64.b64decode(values["encryptedPassword"])
        if cipher == CBC:
            return _decrypt_cbc(key, vector, encrypted)
        if int(values["authenticationTagLength"]) != _TAG_BITS:
            raise UndecodablePassword(f"has a tag that has not {_TAG_BITS} bits")
        return _decrypt_gcm(key, vector, encrypted)

    def _derive(self, key_factory: str, salt: bytes, iterations: int, bits: int) -> bytes:
        return hashlib.pbkdf2_hmac(DIGESTS[key_factory], self._secret, salt, iterations, bits // 8)


def _parse(text: str) -> dict[str, str]:
    parts = [part.rpartition(":") for part in text.split(",")]
    return {name.strip(): value.strip() for name, _, value in parts}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _java_length(text: str) -> int:
    """Return the length of a text in Java: characters outside of the basic plane count twice."""
    return len(text.encode("utf-16-le")) // 2


def _encrypt_cbc(key: bytes, vector: bytes, plain: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    padder, encryptor = PKCS7(128).padder(), Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
    return bytes(encryptor.update(padder.update(plain) + padder.finalize()) + encryptor.finalize())


def _decrypt_cbc(key: bytes, vector: bytes, encrypted: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    decryptor, unpadder = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor(), PKCS7(128).unpadder()
    padded = decryptor.update(encrypted) + decryptor.finalize()
    return bytes(unpadder.update(padded) + unpadder.finalize())


def _encrypt_gcm(key: bytes, nonce: bytes, plain: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return bytes(AESGCM(key).encrypt(nonce, plain, None))


def _decrypt_gcm(key: bytes, nonce: bytes, encrypted: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return bytes(AESGCM(key).decrypt(nonce, encrypted, None))
    except InvalidTag:
        raise UndecodablePassword("was not encrypted with this secret: its tag differs") from None
