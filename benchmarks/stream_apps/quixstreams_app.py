"""A Quix Streams application: one function applied to every record, one after another."""

from __future__ import annotations

from typing import Any

from quixstreams import Application

from stream_apps.meter import Meter, Task


def application(task: Task, meter: Meter) -> Any:
    """Return an app that handles the topic at least once, with commits every second."""
    app = Application(
        broker_address=task.servers,
        consumer_group=task.group,
        auto_offset_reset="earliest",
        commit_interval=1.0,
        auto_create_topics=False,
        state_dir=f"{task.folder}/quixstreams",
        loglevel="WARNING",
    )
    stream = app.dataframe(app.topic(task.topic, key_deserializer="bytes", value_deserializer="bytes"))
    if task.is_noop:
        stream.update(meter.nothing_sync)
    else:

        def handle(value: bytes, key: bytes, timestamp_ms: int, headers: Any) -> None:
            meter.sleep_sync(key, value)

        stream.update(handle, metadata=True)
    return app


if __name__ == "__main__":
    given = Task.given()
    application(given, Meter(given)).run()
