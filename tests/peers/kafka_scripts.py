"""The scripts of an installed Apache Kafka 3.9, which tests do not have: they come as jars from Maven."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from peers.maven import kafka_3_server

_CLASSES: Final = {
    "kafka-acls.sh": "kafka.admin.AclCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-log-dirs.sh": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}
_QUIET: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"


def kafka_scripts(folder: Path, *, stops: int | None = None) -> None:
    """Write scripts that run Kafka's own tools into a folder; what loggers print goes to a file there.

    With `stops` there is `kafka-server-stop.sh` too, which ends the process of that id and waits for its end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, class_name in _CLASSES.items():
        _write(
            folder / name,
            f'exec java -Xmx128m {_QUIET} -cp "{kafka_3_server()}" {class_name} "$@" 2>>"{folder}/errors"',
        )
    if stops is not None:
        # A process that has ended and is not waited for yet is there as a zombie, in state Z.
        running = f"grep -q '^State:.[^Z]' /proc/{stops}/status"
        _write(folder / "kafka-server-stop.sh", f"kill -TERM {stops}\nwhile {running}; do sleep 0.2; done")


def _write(script: Path, commands: str) -> None:
    script.write_text(f"#!/bin/sh\n{commands}\n")
    script.chmod(0o755)
