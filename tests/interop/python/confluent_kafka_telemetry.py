"""Write records until the input ends. The metrics of the producer are pushed as the broker asks."""

from __future__ import annotations

import select
import sys

from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": sys.argv[1], "client.id": "measured"})
while not select.select([sys.stdin], [], [], 0.02)[0]:
    producer.produce("t", b"v")
    producer.flush(30)
producer.flush(30)
print("closed")
