"""The access of a client to a cluster, as settings of each library: PLAINTEXT, or a login over TLS."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from ottla.client.config import ClientConfig

PROTOCOL: Final = "SASL_SSL"
_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_LOGIN: Final = re.compile(r'username="(?P<user>[^"]*)" password="(?P<password>[^"]*)"')


@dataclass(frozen=True)
class Access:
    """A user with a password, and the authority to trust; without a user no login and no TLS."""

    user: str = ""
    password: str = ""
    cafile: str = ""
    mechanism: str = "SCRAM-SHA-512"

    @classmethod
    def from_properties(cls, text: str) -> Self:
        """Read the properties file of a client, in Kafka's keys."""
        keys = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and line[0] != "#")
        assert keys["security.protocol"] == PROTOCOL
        login = _LOGIN.search(keys["sasl.jaas.config"])
        assert login is not None
        return cls(login["user"], login["password"], keys["ssl.truststore.location"], keys["sasl.mechanism"])

    def librdkafka(self) -> dict[str, Any]:
        """Return the settings of confluent-kafka."""
        if not self.user:
            return {}
        return {
            "security.protocol": PROTOCOL, "ssl.ca.location": self.cafile, "sasl.mechanism": self.mechanism,
            "sasl.username": self.user, "sasl.password": self.password,
        }  # fmt: skip

    def kafka_python(self) -> dict[str, Any]:
        """Return the settings of kafka-python."""
        if not self.user:
            return {}
        return {
            "security_protocol": PROTOCOL, "ssl_cafile": self.cafile, "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user, "sasl_plain_password": self.password,
        }  # fmt: skip

    def aiokafka(self) -> dict[str, Any]:
        """Return the settings of aiokafka."""
        if not self.user:
            return {}
        from aiokafka.helpers import create_ssl_context

        return {
            "security_protocol": PROTOCOL, "ssl_context": create_ssl_context(cafile=self.cafile),
            "sasl_mechanism": self.mechanism, "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }  # fmt: skip

    def ottla(self) -> dict[str, Any]:
        """Return the settings of our clients."""
        if not self.user:
            return {}
        return {
            "security_protocol": PROTOCOL, "ssl_cafile": self.cafile, "sasl_mechanism": self.mechanism,
            "sasl_username": self.user, "sasl_password": self.password,
        }  # fmt: skip

    def config(self) -> ClientConfig:
        """Return the configuration of our admin client."""
        from ottla.client.config import ClientConfig
        from ottla.client.security import SecurityConfig

        return ClientConfig(security=SecurityConfig(**self.ottla()))

    def java_options(self, file: Path) -> list[str]:
        """Write it into a properties file; return the argument of a Java program that reads it from there."""
        if not self.user:
            return []
        login = f'{_MODULES[self.mechanism]} required username="{self.user}" password="{self.password}";'
        lines = {
            "security.protocol": PROTOCOL, "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.cafile, "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": login,
        }  # fmt: skip
        file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return [str(file)]

    def options(self, file: Path) -> list[str]:
        """Write it into a file, and return the options of a program in this tree that reads it from there."""
        if not self.user:
            return []
        file.write_text(json.dumps(asdict(self)))
        return ["--access", str(file)]


OPEN: Final = Access()


def read_access(file: str) -> Access:
    """Read what `Access.options` has written; without a file there is no login."""
    return Access(**json.loads(Path(file).read_text())) if file else OPEN
