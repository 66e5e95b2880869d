"""A driver that copies a topic exactly once, into a topic or a lake, until it has everything or is killed.

Its one argument is JSON: servers, source, target, checkpoint, folder (for Spark), and optionally master,
at_once (rows of a batch), lake (a folder for Parquet, instead of the target), and options of the sink. Prints
`ready` when Spark runs, then the number of each completed batch.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from peers.spark import spark_session


def main(given: dict[str, Any]) -> None:
    folder = Path(given["folder"])
    settings = {
        "spark.master": given.get("master", "local[2]"),
        "spark.python.worker.faulthandler.enabled": "false",
    }
    with spark_session(folder, settings) as spark:
        servers = {"kafka.bootstrap.servers": given["servers"]}
        rows = (
            spark.readStream.format("ottla")
            .options(**servers)
            .option("subscribe", given["source"])
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", given.get("at_once", 200))
            .load()
            .select("key", "value")
        )
        print("ready", flush=True)
        query = (
            sink(rows, given)
            .option("checkpointLocation", given["checkpoint"])
            .trigger(availableNow=True)
            .start()
        )
        said = -1
        while query.isActive:
            said = say(query.lastProgress, said)
            time.sleep(0.02)
        query.awaitTermination()
        say(query.lastProgress, said)


def sink(rows: Any, given: dict[str, Any]) -> Any:
    """Return the writer of the rows."""
    if "lake" in given:
        return rows.writeStream.format("parquet").option("path", given["lake"])
    options = {"kafka.bootstrap.servers": given["servers"], **given.get("options", {})}
    return rows.writeStream.format("ottla").options(**options, topic=given["target"], delivery="exactly-once")


def say(progress: Any, said: int) -> int:
    """Print the number of a batch, once."""
    batch = -1 if progress is None else int(progress["batchId"])
    if batch > said:
        print(batch, flush=True)
    return max(batch, said)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
