"""Jars from Maven, resolved once per set of coordinates and cached beside Maven's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

KAFKA_3 = "3.9.1"
KAFKA_4 = "4.4.0"
JACKSON = "2.16.2"
RESOLVE_TIMEOUT_S = 900

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>ottla</groupId><artifactId>peers</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>"""
_DEPENDENCY = (
    "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{alone}</dependency>"
)
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def missing_tools() -> str | None:
    """Return the tool for Java peers that this machine lacks, or None."""
    lacking = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    return f"needs {' and '.join(lacking)} (Debian: openjdk-17-jdk-headless, maven)" if lacking else None


def classpath(*coordinates: str, alone: bool = False) -> str:
    """Resolve `group:artifact:version`, with or without dependencies; return a Java class path."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ottla-peers"
    cache.mkdir(parents=True, exist_ok=True)
    wanted = " ".join([*coordinates, *(["alone"] if alone else [])])
    remembered = cache / f"{hashlib.sha256(wanted.encode()).hexdigest()[:16]}.classpath"
    if remembered.exists():
        text = remembered.read_text()
        if all(Path(entry).exists() for entry in text.split(os.pathsep)):
            return text
    text = _resolve(coordinates, alone=alone)
    remembered.write_text(text)
    return text


def _resolve(coordinates: tuple[str, ...], *, alone: bool) -> str:
    dependencies = "".join(
        _DEPENDENCY.format(*one.split(":"), alone=_ALONE if alone else "") for one in coordinates
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pom.xml").write_text(_POM.format(dependencies=dependencies))
        output = Path(folder, "classpath.txt")
        subprocess.run(
            ["mvn", "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={output}"],
            cwd=folder,
            check=True,
            timeout=RESOLVE_TIMEOUT_S,
        )
        return output.read_text().strip()


def kafka_3_server() -> str:
    """Class path of Apache Kafka 3.9: server, tools and ZooKeeper."""
    kafka = f"org.apache.kafka:kafka_2.13:{KAFKA_3}"
    tools = f"org.apache.kafka:kafka-tools:{KAFKA_3}"
    return classpath(kafka, tools, "org.slf4j:slf4j-simple:1.7.36")


def kafka_4_server() -> str:
    """Class path of Apache Kafka 4.4, which needs no ZooKeeper."""
    return classpath(f"org.apache.kafka:kafka_2.13:{KAFKA_4}", "org.slf4j:slf4j-simple:1.7.36")


def kafka_4_tools() -> str:
    """Class path of the command-line tools of Apache Kafka 4.4."""
    return classpath(f"org.apache.kafka:kafka-tools:{KAFKA_4}", "org.slf4j:slf4j-simple:1.7.36")


def kafka_clients(version: str) -> str:
    """Class path of Apache Kafka's Java client of the given version, and what its OAUTHBEARER needs."""
    return classpath(
        f"org.apache.kafka:kafka-clients:{version}",
        f"com.fasterxml.jackson.core:jackson-databind:{JACKSON}",
        "org.slf4j:slf4j-simple:1.7.36",
    )


def spark_connector() -> str:
    """Class path of Spark's own Kafka source and sink, for Spark 4.3.

    The newest release on Maven Central is for Spark 4.2, and runs in 4.3; the newest token provider is for
    4.0. All other dependencies are part of Spark.
    """
    return classpath(
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.commons:commons-pool2:2.12.0",
        f"org.apache.kafka:kafka-clients:{KAFKA_3}",
        alone=True,
    )


def kafka_streams(version: str = KAFKA_3) -> str:
    """Class path of Apache Kafka Streams."""
    return classpath(f"org.apache.kafka:kafka-streams:{version}", "org.slf4j:slf4j-simple:1.7.36")


def kafka_connect() -> str:
    """Class path of a Connect worker of Apache Kafka 3.9, with the connectors for files."""
    names = ("connect-runtime", "connect-file", "connect-json")
    return classpath(
        *(f"org.apache.kafka:{name}:{KAFKA_3}" for name in names), "org.slf4j:slf4j-simple:1.7.36"
    )
