"""A client's certificate and the authorities it trusts: in PEM files, in PEM text, in PKCS#12 files.

The content of a file decides how it is read. JKS files must be converted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.client.settings import SettingError

if TYPE_CHECKING:
    import ssl

    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

_JKS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER: Final = b"\x30"


def is_pkcs12(name: str, path: str) -> bool:
    """Return whether a file is PKCS#12, not PEM. Raises SettingError for JKS and for a missing file."""
    try:
        with Path(path).open("rb") as file:
            start = file.read(4)
    except OSError as error:
        missing = not Path(path).is_file()
        raise SettingError(
            f"{name}: there is no file {path!r}" if missing else f"{name}: {path!r}: {error.strerror}"
        ) from None
    if start in _JKS:
        raise SettingError(
            f"{name}: {path} is a JKS file; `keytool -importkeystore -srckeystore {path} "
            f"-destkeystore {Path(path).with_suffix('.p12')} -deststoretype PKCS12` converts it"
        )
    return start[:1] == _DER


class Authorities(NamedTuple):
    """The certificate authorities to trust: a PEM or PKCS#12 file, or PEM text; without both the system's."""

    file: str | None = None
    password: str | None = None
    text: str | None = None

    def __repr__(self) -> str:
        return f"Authorities({self.file!r})"

    def places(self) -> dict[str, Any]:
        """Return the keywords of `load_verify_locations`. Raises SettingError."""
        if self.text is not None:
            return {"cadata": self.text}
        if self.file is not None and is_pkcs12("ssl_cafile", self.file):
            return {"cadata": authorities_of_pkcs12(self.file, self.password)}
        return {"cafile": self.file}


class Certificate(NamedTuple):
    """A certificate and its key, in PEM files; without `keyfile` both are in one file.

    `shown` names the place of the key in errors.
    """

    certfile: str
    keyfile: str | None
    password: str | None
    shown: str | None = None

    def __repr__(self) -> str:
        return f"Certificate({self.certfile!r}, {self.keyfile!r})"

    def load(self, context: ssl.SSLContext) -> None:
        """Load both. Raises OSError for bad files, SettingError for a key that cannot be decrypted."""
        import ssl

        key = self.shown or self.keyfile or self.certfile

        def decrypt() -> str:
            # Without this function OpenSSL would ask at the terminal, and block the event loop.
            if self.password is None:
                raise SettingError(f"the key in {key} is encrypted: set ssl_key_password")
            return self.password

        try:
            context.load_cert_chain(self.certfile, self.keyfile, decrypt)
        except ssl.SSLError as error:
            if self.shown is not None and self.password is None:
                raise SettingError(f"{self.shown} is no certificate with its key: {error}") from error
            if self.password is None or error.reason == "KEY_VALUES_MISMATCH":
                raise
            raise SettingError(f"ssl_key_password does not decrypt the key in {key}: {error}") from error


def load_text(context: ssl.SSLContext, chain: str, key: str, password: str | None, shown: str) -> None:
    """Load a certificate and its key, both PEM text. Raises SettingError."""
    with _as_file(f"{key.strip()}\n{chain.strip()}\n".encode()) as path:
        Certificate(path, None, password, shown).load(context)


def load_pkcs12(context: ssl.SSLContext, path: str, password: str | None) -> None:
    """Load the certificate and the key of a PKCS#12 file. Raises SettingError."""
    found = _opened(path, password, "ssl_keystore_password")
    if found.key is None or found.cert is None:
        raise SettingError(f"{path} has no key with a certificate")
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificates = [found.cert, *found.additional_certs]
    chain = b"".join(held.certificate.public_bytes(Encoding.PEM) for held in certificates)
    load_text(context, chain.decode(), key.decode(), None, path)


def authorities_of_pkcs12(path: str, password: str | None) -> str:
    """Return the certificates of a PKCS#12 file as PEM text. Raises SettingError."""
    found = _opened(path, password, "ssl_truststore_password")
    from cryptography.hazmat.primitives.serialization import Encoding

    certificates = [*([found.cert] if found.cert else []), *found.additional_certs]
    if not certificates:
        raise SettingError(f"{path} has no certificate to trust")
    return b"".join(held.certificate.public_bytes(Encoding.PEM) for held in certificates).decode()


def _opened(path: str, password: str | None, setting: str) -> PKCS12KeyAndCertificates:
    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise SettingError(
            f"{path} is a PKCS#12 file: `python -m pip install ottla-client[pkcs12]` brings its reader"
        ) from None
    try:
        return pkcs12.load_pkcs12(Path(path).read_bytes(), password.encode() if password else None)
    except ValueError as error:
        raise SettingError(f"{setting} does not open {path}: {error}") from None


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Give bytes a path for OpenSSL, which reads only files: in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("pem", os.MFD_CLOEXEC)
        with os.fdopen(handle, "wb") as memory:
            memory.write(content)
            memory.flush()
            yield f"/proc/self/fd/{handle}"
        return
    import tempfile

    handle, path = tempfile.mkstemp()  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        yield path
    finally:
        Path(path).unlink(missing_ok=True)
