"""Record batches and checksums, paired with aiokafka, kafka-python and the crc32c package.

python benchmarks/record_codec.py [--rounds 15]

Each round runs every contender once, in turn, so that other load affects all alike. The figures are CPU time:
the median over the rounds, and the median of the ratios within a round.
"""

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping

import crc32c as crc32c_package
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder

from ottla.protocol.records import (
    BatchBuilder,
    crc32c,
    decode_records,
    iter_records,
    scan_records,
    validate_batch,
)
from ottla.protocol.records._codec import crc32c_implementations

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

BATCH_BYTES = 100_000
NOW_MS = 1_700_000_000_000
Contenders = Mapping[str, Callable[[], object]]


def seconds_of(call: Callable[[], object], times: int) -> float:
    started = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - started) / times


def compare(title: str, contenders: Contenders, *, rounds: int, times: int, unit: str, scale: float) -> None:
    """Print one line for each contender; the first is ours, and the ratio is the others' time over ours."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            taken[name].append(seconds_of(call, times))
    ours = next(iter(taken.values()))
    print(f"\n{title}")
    for name, values in taken.items():
        ratio = statistics.median(value / own for value, own in zip(values, ours, strict=True))
        print(f"  {name:<34}{statistics.median(values) * scale:12.1f} {unit}   x {ratio:.2f}")


def encoders(values: list[bytes], key: bytes | None) -> Contenders:
    limit = 64 << 20

    def own() -> bytes:
        builder = BatchBuilder(limit)
        for value in values:
            builder.append(key, value, NOW_MS)
        return builder.build()

    def own_many() -> bytes:
        builder = BatchBuilder(limit)
        builder.append_many(values, NOW_MS)
        return builder.build()

    def aiokafka() -> object:
        builder = AiokafkaBuilder(2, 0, 0, -1, -1, -1, limit)
        for offset, value in enumerate(values):
            builder.append(offset, NOW_MS, key, value, [])
        return builder.build()

    def kafka_python() -> object:
        builder = KafkaPythonBuilder(2, 0, 0, -1, -1, -1, limit)
        for offset, value in enumerate(values):
            builder.append(offset, NOW_MS, key, value, [])
        return builder.build()

    return {
        "append": own,
        "append_many, no key": own_many,
        "aiokafka": aiokafka,
        "kafka-python": kafka_python,
    }


def decoders(batch: bytes) -> Contenders:
    return {
        "iter_records, value": lambda: [record.value for record in iter_records(batch)],
        "iter_records": lambda: [0 for _ in iter_records(batch)],
        "decode_records, value": lambda: [record.value for record in decode_records(batch)],
        "scan_records": lambda: scan_records(batch),
        "validate_batch": lambda: validate_batch(batch),
        "validate_batch, records too": lambda: validate_batch(batch, dense=True, check_records=True),
        "aiokafka, value": lambda: [record.value for record in AiokafkaBatch(batch)],
        "kafka-python, value": lambda: [record.value for record in KafkaPythonBatch(batch)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds

    print(f"CRC-32C by {crc32c_implementations()[-1]}")
    for size in (100, 1024, 16 << 10, 1 << 20):
        data = os.urandom(size)
        contenders: Contenders = {
            "ours": lambda data=data: crc32c(data),  # type: ignore[misc]
            "crc32c package": lambda data=data: crc32c_package.crc32c(data),  # type: ignore[misc]
        }
        times = max(20, (8 << 20) // (size + 2000))
        compare(f"checksum of {size} bytes", contenders, rounds=rounds, times=times, unit="ns", scale=1e9)
        best = min(seconds_of(contenders["ours"], times) for _ in range(3))
        print(f"  {size / best / 1e9:.1f} GB/s")

    for size in (100, 1024):
        # larger batches would mostly measure the kernel handing out fresh pages
        count = BATCH_BYTES // size
        values = [os.urandom(size) for _ in range(count)]
        per_record = 1e9 / count
        for key, what in ((None, "no key"), (b"sixteen bytes key", "keyed")):
            title = f"encode {count} records of {size} bytes, {what}"
            compare(title, encoders(values, key), rounds=rounds, times=10, unit="ns/record", scale=per_record)
        builder = BatchBuilder(64 << 20)
        builder.append_many(values, NOW_MS)
        batch = builder.build()
        title = f"decode {count} records of {size} bytes"
        compare(title, decoders(batch), rounds=rounds, times=10, unit="ns/record", scale=per_record)


if __name__ == "__main__":
    main()
