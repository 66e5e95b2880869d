"""A driver that copies a topic into another exactly once, until it has everything or is killed.

Its one argument is JSON: servers, source, target, checkpoint, folder (for Spark), and maybe master, at_once
(rows of a batch), and options of the sink. Says `ready` when Spark is up, then the number of each batch that
is done.
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
            rows.writeStream.format("ottla")
            .options(**servers, topic=given["target"], delivery="exactly-once", **given.get("options", {}))
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


def say(progress: Any, said: int) -> int:
    """Say which batch is done, if it was not said."""
    batch = -1 if progress is None else int(progress["batchId"])
    if batch > said:
        print(batch, flush=True)
    return max(batch, said)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
