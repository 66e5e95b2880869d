"""PLAIN and SCRAM on the server's side."""

from __future__ import annotations

import base64
import hashlib
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.security.sasl.mechanisms import (
    Identity,
    MalformedToken,
    PlainServer,
    PlainUsers,
)
from ottla.broker.security.sasl.scram import (
    SCRAM_HASHES,
    SHA_256,
    SHA_512,
    ScramCredential,
    ScramHash,
    ScramServer,
    ScramUser,
    UnknownUsers,
    new_salt,
)
from ottla.client.authentication import Scram
from ottla.client.errors import AuthenticationFailed
from ottla.client.jaas import LoginModule
from ottla.protocol.errors import SaslAuthenticationFailed

USERS = PlainUsers(
    LoginModule(
        "PlainLoginModule", "required", {"username": "kafka", "user_alice": "wonder", "user_": "nobody"}
    )
)
UNKNOWN = UnknownUsers(b"of the cluster")
SALT = b"1pd4of1f6yv5a4h9"


def plain(token: bytes) -> Identity | None:
    server = PlainServer(USERS)
    assert server.evaluate(token) == b""
    return server.identity


def test_plain_accepts_a_user_of_the_jaas_line() -> None:
    assert plain(b"\0alice\0wonder") == Identity("alice")
    assert plain(b"alice\0alice\0wonder") == Identity("alice")


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"\0alice\0Wonder", "Invalid username or password"),
        (b"\0bob\0wonder", "Invalid username or password"),
        (b"\0kafka\0", "password not specified"),
        (b"\0kafka\0kafka", "Invalid username or password"),
        (b"\0\0nobody", "username not specified"),
        (b"bob\0alice\0wonder", "Client requested an authorization id that is different from username"),
    ],
)
def test_plain_refuses_with_the_words_of_kafka(token: bytes, message: str) -> None:
    with pytest.raises(SaslAuthenticationFailed, match=f"Authentication failed: {message}"):
        PlainServer(USERS).evaluate(token)


def test_plain_checks_the_password_before_it_speaks_of_the_authorization_id() -> None:
    with pytest.raises(SaslAuthenticationFailed, match="Invalid username or password"):
        PlainServer(USERS).evaluate(b"bob\0alice\0guess")


@pytest.mark.parametrize("token", [b"", b"alice", b"\0alice", b"\0a\0b\0c", b"\0\xff\0x", b"\0" * 524_288])
def test_plain_refuses_a_token_that_is_none_of_it(token: bytes) -> None:
    with pytest.raises(MalformedToken):
        PlainServer(USERS).evaluate(token)


# ---- SCRAM


def user_of(
    kind: ScramHash, name: str = "alice", password: str = "wonder", iterations: int = 4096
) -> ScramUser:
    return ScramUser(ScramCredential.from_password(kind, password, SALT, iterations), Identity(name))


def server_of(kind: ScramHash, user: ScramUser | None = None) -> ScramServer:
    user = user or user_of(kind)

    def find(asked: ScramHash, name: str, by_token: bool) -> ScramUser | None:
        return user if asked is kind and name == user.identity.name and not by_token else None

    return ScramServer(kind, find, UNKNOWN, lambda: "server")


def log_in(server: ScramServer, client: Scram) -> None:
    challenge = server.evaluate(client.first())
    proof = client.answer(challenge)
    assert proof is not None
    assert client.answer(server.evaluate(proof)) is None


def test_scram_answers_as_in_the_example_of_the_rfc() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    user = ScramUser(ScramCredential.from_password(SHA_256, "pencil", salt, 4096), Identity("user"))
    nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    server = ScramServer(SHA_256, lambda *_: user, UNKNOWN, lambda: nonce)

    first = server.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    final = server.evaluate(
        f"c=biws,r=rOprNGfwEbeRWgbNEkqO{nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    )

    assert first == f"r=rOprNGfwEbeRWgbNEkqO{nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server.identity == Identity("user")


@pytest.mark.parametrize("kind", SCRAM_HASHES.values(), ids=SCRAM_HASHES)
@pytest.mark.parametrize("name", ["alice", "a,b=c", "ünï ☃", "n=2C"])
def test_a_client_and_the_server_prove_the_password_to_each_other(kind: ScramHash, name: str) -> None:
    server = server_of(kind, user_of(kind, name))

    log_in(server, Scram(kind.name, name, "wonder", "client"))

    assert server.identity == Identity(name)


def test_scram_accepts_a_nonce_with_the_clients_part_twice_as_librdkafka_2_3_sends_it() -> None:
    server = server_of(SHA_256)
    challenge = server.evaluate(b"n,,n=alice,r=client")
    salted = hashlib.pbkdf2_hmac("sha256", b"wonder", SALT, 4096)
    client_key = SHA_256.mac(salted, b"Client Key")
    unproved = b"c=biws,r=clientclientserver"
    message = b",".join((b"n=alice,r=client", challenge, unproved))
    signature = SHA_256.mac(SHA_256.digest(client_key), message)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))

    server.evaluate(unproved + b",p=" + base64.b64encode(proof))

    assert server.identity == Identity("alice")


@pytest.mark.parametrize("kind", SCRAM_HASHES.values(), ids=SCRAM_HASHES)
def test_an_unknown_user_and_a_wrong_password_look_alike(kind: ScramHash) -> None:
    errors = []
    for name in ("alice", "mallory"):
        server = server_of(kind)
        client = Scram(kind.name, name, "guess", "client")
        challenge = server.evaluate(client.first())
        assert challenge.endswith(b",i=4096")
        proof = client.answer(challenge)
        assert proof is not None
        with pytest.raises(MalformedToken) as raised:
            server.evaluate(proof)
        errors.append(str(raised.value))
        assert server.identity is None

    assert errors == ["invalid client credentials"] * 2


def test_an_unknown_user_has_the_same_salt_at_every_login_and_one_that_looks_like_kafkas() -> None:
    def salt(name: str, secret: bytes = b"of the cluster") -> bytes:
        return UnknownUsers(secret).credential(SHA_256, name).salt

    assert salt("mallory") == salt("mallory") != salt("trent")
    assert salt("mallory") != salt("mallory", b"of another cluster")
    assert {len(salt(f"user{n}")) for n in range(200)} <= {23, 24, 25, 26}
    assert {len(new_salt((1 << 129) + n)) for n in range(200)} == {25}


class CountedHash:
    """SHA-256 that counts how often it is asked."""

    name, algorithm, size, min_iterations = SHA_256.name, SHA_256.algorithm, SHA_256.size, 4096

    def __init__(self) -> None:
        self.calls: list[str] = []

    def mac(self, key: bytes, message: bytes) -> bytes:
        self.calls.append("mac")
        return SHA_256.mac(key, message)

    def digest(self, data: bytes) -> bytes:
        self.calls.append("digest")
        return SHA_256.digest(data)


def only_alice(kind: ScramHash, name: str, by_token: bool) -> ScramUser | None:
    return user_of(SHA_256) if name == "alice" else None


def test_an_unknown_user_costs_the_server_the_same_hashes() -> None:
    calls = {}
    for name in ("alice", "mallory"):
        counted = CountedHash()
        kind = cast(ScramHash, counted)
        server = ScramServer(kind, only_alice, UNKNOWN, lambda: "s")
        client = Scram("SCRAM-SHA-256", name, "guess", "client")
        proof = client.answer(server.evaluate(client.first()))
        assert proof is not None
        with pytest.raises(MalformedToken):
            server.evaluate(proof)
        calls[name] = counted.calls

    assert calls["alice"] == calls["mallory"]
    assert calls["alice"]


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"n,,",
        b"y,,n=alice,r=x",
        b"p=tls-unique,,n=alice,r=x",
        b"n,,n=,r=x",
        b"n,,n=alice,r=",
        b"n,,n=al=ice,r=x",
        b"n,,n=alice,r=x,y",
        b"n,,n=alice,r=\xff",
        b"n,,n=alice\0,r=x",
        b"n" * 524_288,
        b"n,,n=" + b"=2C" * 170_000,
    ],
)
def test_a_first_message_that_is_none_is_refused(token: bytes) -> None:
    with pytest.raises(MalformedToken):
        server_of(SHA_256).evaluate(token)


def final_after(server: ScramServer, change: tuple[str, str]) -> bytes:
    client = Scram("SCRAM-SHA-256", "alice", "wonder", "client")
    proof = client.answer(server.evaluate(client.first()))
    assert proof is not None
    changed = proof.decode().replace(*change)
    assert changed != proof.decode()
    return changed.encode()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("r=clientserver", "r=clientother"), "nonce"),
        (("r=clientserver", "r=client"), "nonce"),
        (("c=biws", "c=eSws"), "channel binding"),
        (("c=biws", "c=biw"), "base64"),
        (("p=", "p=AAAA"), "base64|length|credentials"),
        (("p=", "m=1,p="), "credentials"),
        (("p=", ""), "final message"),
        (("c=biws,", ""), "final message"),
    ],
)
def test_a_final_message_that_does_not_continue_the_first_is_refused(
    change: tuple[str, str], reason: str
) -> None:
    server = server_of(SHA_256)

    with pytest.raises(MalformedToken, match=reason):
        server.evaluate(final_after(server, change))

    assert server.identity is None


def test_a_credential_of_very_many_iterations_costs_the_server_nothing() -> None:
    server = server_of(SHA_256, written_with(2**31))

    assert server.evaluate(b"n,,n=alice,r=x").endswith(b",i=2147483648")
    with pytest.raises(MalformedToken, match="length"):
        server.evaluate(b"c=biws,r=xserver,p=AAAA")


@pytest.mark.parametrize("name", ["a b", "ünï ☃", "User:bob", "*", "a\nb", "\x1b[2J", "\u202eecila", "a=b,c"])
def test_plain_takes_names_of_odd_characters(name: str) -> None:
    users = PlainUsers(LoginModule("PlainLoginModule", "required", {f"user_{name}": "p=,;\n"}))
    server = PlainServer(users)

    server.evaluate(f"\0{name}\0p=,;\n".encode())
    assert server.identity == Identity(name)


def test_a_client_may_ask_for_its_own_name_only() -> None:
    assert server_of(SHA_256).evaluate(b"n,a=alice,n=alice,r=x").startswith(b"r=xserver,")
    with pytest.raises(SaslAuthenticationFailed, match="authorization id"):
        server_of(SHA_256).evaluate(b"n,a=bob,n=alice,r=x")


def test_extensions_that_kafka_does_not_know_are_ignored() -> None:
    assert server_of(SHA_256).evaluate(b"n,,n=alice,r=x,foo=bar").startswith(b"r=xserver,")


def test_a_token_is_found_only_with_the_extension_of_kafka() -> None:
    asked = []

    def find(kind: ScramHash, name: str, by_token: bool) -> ScramUser | None:
        asked.append((name, by_token))
        return None

    for extension in ("", ",tokenauth=false", ",tokenauth=true"):
        ScramServer(SHA_256, find, UNKNOWN, lambda: "s").evaluate(f"n,,n=id,r=x{extension}".encode())

    assert asked == [("id", False), ("id", False), ("id", True)]


def written_with(iterations: int) -> ScramUser:
    """Return a user whose credential another tool wrote, with any number of iterations."""
    credential = ScramCredential.from_salted_password(SHA_256, SALT, b"salted", iterations)
    return ScramUser(credential, Identity("alice"))


@pytest.mark.parametrize("iterations", [-(2**31), 0, 1, 4095])
def test_a_credential_of_too_few_iterations_lets_nobody_in(iterations: int) -> None:
    with pytest.raises(MalformedToken, match="iterations, less than 4096"):
        server_of(SHA_256, written_with(iterations)).evaluate(b"n,,n=alice,r=x")


def test_a_client_refuses_a_server_that_does_not_know_the_password() -> None:
    client = Scram("SCRAM-SHA-512", "alice", "wonder", "client")
    server = server_of(SHA_512, user_of(SHA_512, password="other"))
    client.answer(server.evaluate(client.first()))

    with pytest.raises(AuthenticationFailed):
        client.answer(b"v=" + base64.b64encode(b"x" * 64))


def test_a_credential_is_kept_as_kafka_keeps_it() -> None:
    credential = ScramCredential.from_password(SHA_256, "alice-secret", b"1wt8rp7t6bn2jq1f", 8192)

    text = credential.encode()

    assert text.startswith("salt=MXd0OHJwN3Q2Ym4yanExZg==,stored_key=")
    assert text.endswith(",iterations=8192")
    assert ScramCredential.decode(text) == credential


@pytest.mark.parametrize(
    "text",
    [
        "",
        "salt=AA==",
        "salt=?,stored_key=AA==,server_key=AA==,iterations=4096",
        "salt=AA==,stored_key=AA==,server_key=AA==,iterations=secretword",
        "salt=AA==,stored_key=AA==,server_key=AA==,iterations=4096,more=1",
    ],
)
def test_a_damaged_credential_is_refused_without_a_word_of_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"must have|has a field") as raised:
        ScramCredential.decode(text)
    assert "secretword" not in str(raised.value)


def test_no_key_is_in_the_repr_of_a_credential() -> None:
    assert repr(user_of(SHA_256).credential) == "ScramCredential(iterations=4096)"


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_are_answered_or_refused(first: bytes, final: bytes) -> None:
    for kind in SCRAM_HASHES.values():
        server = server_of(kind, ScramUser(UNKNOWN.credential(kind, "x"), Identity("x")))
        for token in (first, b"n,,n=x,r=y", final):
            try:
                server.evaluate(token)
            except (MalformedToken, SaslAuthenticationFailed):
                continue
        assert server.identity is None
