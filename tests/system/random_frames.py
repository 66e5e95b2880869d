"""Random request frames made from the message schemas: valid, nearly valid, and random bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from ottla.protocol.api import ApiKey, RequestHeader, encode_request, request_class
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from ottla.protocol.records import BatchBuilder, Codec
from ottla.protocol.schema import Field, Message, Struct

TOPICS = [f"fuzz-{number}" for number in range(6)]
GROUPS = [f"group-{number}" for number in range(6)]
STRINGS = [
    *TOPICS, *GROUPS, "", ".", "..", "a/b", "../../etc/passwd", "n\0ul", "ü" * 20, "x" * 249, "x" * 250,
    "%2e%2e", "a.b", "a_b", "consumer", "range", "1.2.3.4", "segment.bytes", "retention.ms",
    "cleanup.policy", "compact", "100",
]  # fmt: skip
OF_SECURITY = [
    "user", "client-id", "ip", "alice", "User:alice", "User:*", "User:canary;User:admin", "*", "group",
    "producer_byte_rate", "consumer_byte_rate", "request_percentage", "connection_creation_rate",
    "controller_mutation_rate", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512",
]  # fmt: skip
"""Further texts, with which random rules, quotas and users are valid more often."""
INTEGERS = [
    -(2**63),
    -(2**31),
    -32768,
    -129,
    -3,
    -2,
    -1,
    0,
    0,
    0,
    1,
    1,
    1,
    2,
    3,
    5,
    10,
    100,
    32767,
    2**31 - 1,
    2**63 - 1,
]
INTER_BROKER = {
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
}
"""Requests with which any client could break a cluster; here they are only sent truncated."""

_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


class RandomFrames:
    """Makes frames from a seed; the same seed gives the same frames."""

    def __init__(self, seed: int, keys: list[ApiKey], strings: list[str] = STRINGS) -> None:
        self.rng = random.Random(seed)
        self._keys = keys
        self._strings = strings
        self._batches = [self._batch(codec) for codec in Codec for _ in range(3)]
        self._kinds: list[tuple[int, Callable[[], bytes]]] = [
            (50, self.valid),
            (20, self.flipped),
            (10, self.truncated),
            (5, self.grown),
            (5, self.unknown_api),
            (5, self.wrong_flexibility),
            (4, self.garbage),
            (1, self.bad_size),
        ]

    def frame(self) -> bytes:
        """Return one frame with its size; the size may be wrong."""
        kinds = [kind for _, kind in self._kinds]
        return self.rng.choices(kinds, [weight for weight, _ in self._kinds])[0]()

    def valid(self) -> bytes:
        """Return a request that follows its schema, with random fields."""
        key = self.rng.choice(self._keys)
        return self.truncated() if key in INTER_BROKER else sized(self.request(key))

    def flipped(self) -> bytes:
        """Return a request with some bits flipped after its header."""
        key = self.rng.choice([key for key in self._keys if key not in INTER_BROKER])
        body = bytearray(self.request(key))
        for _ in range(self.rng.choice((1, 1, 1, 2, 5, 20))):
            at = self.rng.randrange(min(8, len(body) - 1), len(body))
            body[at] ^= 1 << self.rng.randrange(8)
        return sized(bytes(body))

    def truncated(self) -> bytes:
        """Return a truncated request in a frame of its actual size."""
        body = self.request(self.rng.choice(self._keys))
        return sized(body[: self.rng.randrange(len(body))])

    def grown(self) -> bytes:
        """Return a request with random bytes inserted."""
        body = self.request(self.rng.choice([key for key in self._keys if key not in INTER_BROKER]))
        at = self.rng.randrange(8, len(body)) if len(body) > 8 else len(body)
        return sized(body[:at] + self.rng.randbytes(self.rng.randrange(1, 40)) + body[at:])

    def unknown_api(self) -> bytes:
        """Return a header with a key or version that is not served."""
        key = self.rng.choice((-1, 99, 1000, 32767, int(self.rng.choice(self._keys))))
        version = self.rng.choice((-1, 50, 32767))
        return sized(struct.pack(">hhih", key, version, 1, -1) + self.rng.randbytes(self.rng.randrange(40)))

    def wrong_flexibility(self) -> bytes:
        """Return a body of one version under a header with another."""
        key = self.rng.choice([key for key in self._keys if key not in INTER_BROKER])
        cls = request_class(key)
        version, other = (self.rng.randint(cls.MIN_VERSION, cls.MAX_VERSION) for _ in range(2))
        return sized(self.header(key, version, cls) + self.body(cls, other))

    def garbage(self) -> bytes:
        """Return random bytes in a frame of the right size."""
        return sized(self.rng.randbytes(self.rng.randrange(0, 200)))

    def bad_size(self) -> bytes:
        """Return a frame with a wrong size."""
        return struct.pack(
            ">i", self.rng.choice((-1, -(2**31), 2**31 - 1, 200_000_000))
        ) + self.rng.randbytes(20)

    def request(self, key: ApiKey) -> bytes:
        cls = request_class(key)
        version = self.rng.randint(cls.MIN_VERSION, cls.MAX_VERSION)
        return self.header(key, version, cls) + self.body(cls, version)

    def header(self, key: ApiKey, version: int, cls: type[Message]) -> bytes:
        head = struct.pack(">hhih", key, version, self.rng.randrange(2**31), 4) + b"fuzz"
        return head + b"\0" if version >= cls.FLEXIBLE_FROM else head

    def body(self, cls: type[Message], version: int) -> bytes:
        message = cls()
        self._fill(message, version, 0)
        return message.encode(version)

    def _fill(self, message: Struct, version: int, depth: int) -> None:
        for field in message.FIELDS:
            if field.is_in(version):
                setattr(message, field.name, self._value(field, version, depth))

    def _value(self, field: Field, version: int, depth: int) -> Any:
        if field.is_nullable(version) and self.rng.random() < 0.15:
            return None
        if field.kind == "array":
            return [
                self._item(field, version, depth)
                for _ in range(self.rng.choice((0, 1, 1, 1, 2, 3) if depth else (0, 1, 2)))
            ]
        if field.kind == "struct":
            return self._struct(field.element, version, depth)
        return self._scalar(field.kind)

    def _item(self, field: Field, version: int, depth: int) -> Any:
        if isinstance(field.element, Field):
            return self._scalar(field.element.kind)
        return self._struct(field.element, version, depth)

    def _struct(self, cls: Any, version: int, depth: int) -> Struct:
        made: Struct = cls()
        self._fill(made, version, depth + 1)
        return made

    def _scalar(self, kind: str) -> Any:
        if kind in _BITS:
            value = self.rng.choice(INTEGERS)
            limit = 1 << _BITS[kind]
            return value if -limit <= value < limit else self.rng.choice((0, limit - 1, -limit))
        if kind in ("uint16", "uint32"):
            return self.rng.choice((0, 1, 65535))
        if kind == "string":
            return self.rng.choice(self._strings)
        if kind == "boolean":
            return self.rng.random() < 0.5
        if kind == "uuid":
            return UUID(int=self.rng.choice((0, 1, self.rng.getrandbits(128))))
        if kind == "float64":
            return self.rng.choice((0.0, 1.5, float("inf"), float("nan")))
        return self._records() if kind == "records" else self.rng.randbytes(self.rng.randrange(30))

    def _records(self) -> bytes:
        batch = bytearray(self.rng.choice(self._batches))
        for _ in range(self.rng.choice((0, 0, 0, 1, 3))):
            batch[self.rng.randrange(len(batch))] ^= 1 << self.rng.randrange(8)
        return bytes(
            batch[: self.rng.choice((len(batch), len(batch), self.rng.randrange(len(batch)))) or None]
        )

    def _batch(self, codec: Codec) -> bytes:
        builder = BatchBuilder(codec=codec)
        for number in range(self.rng.randrange(1, 20)):
            builder.append(b"k%d" % number, b"v" * self.rng.randrange(50), 1_700_000_000_000 + number)
        return bytes(builder.build())


class RandomLogins:
    """Makes the frames of clients that never log in: tokens that are none, out of order, of every size."""

    def __init__(self, seed: int, keys: list[ApiKey]) -> None:
        self.rng = random.Random(seed)
        self._frames = RandomFrames(seed, keys)
        self._tokens = [self._of_plain, self._of_scram, self._of_bearer, self._of_bytes, self._of_size]

    def conversation(self) -> list[bytes]:
        """Return the frames of one connection."""
        kinds = (self._login, self._login, self._login, self._raw_login, self._versions, self._requests)
        return self.rng.choice(kinds)()

    def records(self) -> bytes:
        """Return bytes in place of a TLS handshake."""
        size = self.rng.choice((0, 1, 5, 100, 16_384, 65_535))
        head = bytes([self.rng.choice((20, 21, 22, 22, 22, 23, 24, 0, 128)), 3, self.rng.randrange(5)])
        body = self.rng.randbytes(min(size, self.rng.choice((size, 20))))
        return head + struct.pack(">H", size) + body if self.rng.random() < 0.8 else body

    def _login(self) -> list[bytes]:
        tokens = [
            SaslAuthenticateRequest(auth_bytes=self.token()) for _ in range(self.rng.choice((1, 1, 2, 3, 8)))
        ]
        found = [self._sent(self._handshake(), 0, 1), *(self._sent(token, 0, 2) for token in tokens)]
        if self.rng.random() < 0.3:
            self.rng.shuffle(found)
        return found

    def _raw_login(self) -> list[bytes]:
        """Tokens without a header follow version 0 of the handshake."""
        tokens = [sized(self.token()) for _ in range(self.rng.choice((1, 2, 5)))]
        return [self._sent(self._handshake(), 0, 0), *tokens]

    def _versions(self) -> list[bytes]:
        count = self.rng.choice((1, 5, 20))
        return [self._sent(ApiVersionsRequest(), 0, 3) for _ in range(count)] + self._requests()

    def _requests(self) -> list[bytes]:
        return [self._frames.frame()]

    def _handshake(self) -> SaslHandshakeRequest:
        known = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
        others = ("GSSAPI", "plain", "", "PLAIN\0", "x" * 32_000, "SCRAM-SHA-1")
        return SaslHandshakeRequest(mechanism=self.rng.choice(known * 4 + others))

    def token(self) -> bytes:
        """Return a token that lets nobody in."""
        return self.rng.choice(self._tokens)()

    def _of_plain(self) -> bytes:
        names = (
            "admin",
            "alice",
            "",
            "mallory",
            "User:admin",
            "admin\0",
            "x" * 5_000,
            "\u202eadmin",
            "admin\n",
        )
        fields = [self.rng.choice(names) for _ in range(self.rng.choice((1, 2, 2, 2, 3, 9)))]
        return "\0".join(["", *fields]).encode()

    def _of_scram(self) -> bytes:
        first = (
            "n,,n=admin,r=abc", "n,a=alice,n=admin,r=abc", "y,,n=admin,r=abc", "p=tls-unique,,n=admin,r=abc",
            "n,,n=,r=abc", "n,,n=admin,r=", "n,,n=admin", "n,,m=x,n=admin,r=abc", "n,,n=a=2Cb=3D,r=abc",
            "n,,n=admin,r=abc,tokenauth=true", "n,,n=" + "x" * 60_000 + ",r=abc",
            "n,,n=admin,r=" + "y" * 60_000,
        )  # fmt: skip
        final = (
            "c=biws,r=abc,p=" + "A" * 44, "c=biws,r=foreign,p=", "c=,r=,p=", "c=biws,p=AAAA", "e=other-error",
            "c=biws,r=abc" + "z" * 40 + ",p=" + "=" * 88, "c=" + "A" * 60_000 + ",r=abc,p=AAAA",
        )  # fmt: skip
        return self._flipped(self.rng.choice(first + final).encode())

    def _of_bearer(self) -> bytes:
        tokens = ("", "x", "a.b.c", ".".join(["e30"] * 3), "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.")
        token = self.rng.choice((*tokens, "A" * 70_000, "[" * 30_000))
        form = self.rng.choice(
            ("n,,\x01auth=Bearer {}\x01\x01", "n,a=admin,\x01auth=Bearer {}\x01\x01", "{}")
        )
        return self._flipped(form.replace("{}", token).encode())

    def _of_bytes(self) -> bytes:
        return self.rng.randbytes(self.rng.choice((0, 1, 16, 300)))

    def _of_size(self) -> bytes:
        if self.rng.random() < 0.97:  # large ones would be all that is measured
            return bytes(self.rng.choice((1_000, 20_000)))
        return bytes(524_288 + self.rng.choice((-100, -13, -1, 0, 1, 100_000)))

    def _flipped(self, token: bytes) -> bytes:
        changed = bytearray(token)
        for _ in range(self.rng.choice((0, 0, 0, 1, 3)) if token else 0):
            changed[self.rng.randrange(len(changed))] ^= 1 << self.rng.randrange(8)
        return bytes(changed)

    def _sent(self, request: Message, lowest: int, highest: int) -> bytes:
        version = self.rng.randint(lowest, highest)
        return sized(encode_request(RequestHeader(request.API_KEY, version, 1, "fuzz"), request))


def sized(body: bytes) -> bytes:
    """Put the size before a frame's body."""
    return struct.pack(">i", len(body)) + body
