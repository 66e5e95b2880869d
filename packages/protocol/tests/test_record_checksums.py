import os
import random
import shutil
import subprocess
import sysconfig
import zlib
from importlib.resources import files
from pathlib import Path

import crc32c as peer
import pytest

from ottla.protocol.records import _codec, crc32c, murmur2
from ottla.protocol.records.compression import xxh32
from ottla.protocol.records.testing import reference_crc32c

IMPLEMENTATIONS = _codec.crc32c_implementations()


def test_the_compiled_module_is_what_the_facade_uses() -> None:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")

    assert _codec.__file__.endswith(suffix)
    assert type(crc32c).__name__ in {"builtin_function_or_method", "cython_function_or_method"}


def test_the_check_value_of_the_catalogue_comes_out() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_routine_agrees_with_another_library_at_every_length_and_alignment(implementation: str) -> None:
    data = random.Random(1).randbytes(70_000)

    for size in [*range(700), 952, 1023, 1024, 1025, 4096, 32_640, 32_641, 65_536, 69_990]:
        piece = data[size % 9 : size % 9 + size]
        assert _codec.crc32c_with(implementation, piece, 77) == peer.crc32c(piece, 77), size


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("size", [0, 100, 1023, 1024, 4096, 100_000])
def test_no_routine_leaves_the_upper_halves_of_vector_registers_dirty(implementation: str, size: int) -> None:
    dirty = _codec.crc32c_leaves_dirty(implementation, bytes(size))

    if dirty is None:
        pytest.skip("this processor does not tell")
    assert not dirty


def test_it_agrees_with_the_reference_and_continues_from_a_value() -> None:
    data = random.Random(2).randbytes(5_000)

    assert crc32c(data) == reference_crc32c(data)
    assert crc32c(memoryview(data)[1000:], crc32c(bytearray(data[:1000]))) == crc32c(data)


def test_the_table_is_always_there_and_the_best_comes_last() -> None:
    assert IMPLEMENTATIONS[0] == "table"


WIDE_PROGRAM = """
#include <stdio.h>
#include "crc32c.h"
int main(void) {
    ottla_crc_choose();
    for (int i = 0; i < ottla_crc_count; i++) puts(ottla_crc_names[i]);
    static unsigned char data[70000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 2654435761u >> 13);
    for (size_t n = 0; n < sizeof data; n += n < 3000 ? 1 : 997)
        if (ottla_crc_vpclmul(~0u, data, n) != ottla_crc_sliced(~0u, data, n)) return 1;
    return 0;
}
"""


@pytest.mark.skipif("avx512" not in IMPLEMENTATIONS, reason="needs a processor with AVX-512")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a compiler")
def test_the_widest_routine_is_right_with_its_instruction_emulated(tmp_path: Path) -> None:
    (tmp_path / "wide.c").write_text(WIDE_PROGRAM)
    include = str(files("ottla.protocol.records"))
    if not os.path.exists(f"{include}/crc32c.h"):
        pytest.skip("needs the sources")
    program = tmp_path / "wide"
    command = ["gcc", "-O1", "-DOTTLA_EMULATE_VPCLMUL", f"-I{include}", "-o", str(program), f"{program}.c"]
    subprocess.run(command, check=True, timeout=60)

    answer = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=False)

    assert answer.returncode == 0
    assert answer.stdout.split()[-1] == "vpclmul"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # from Apache Kafka's UtilsTest
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_equals_javas(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected
    assert murmur2(memoryview(b"x" + key)[1:]) == expected


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0x02CC5D05),
        (b"", 0x9E3779B1, 0x36B78AE7),
        (b"a", 0, 0x550D7456),
        (b"abc", 0, 0x32D153FF),
        (b"Nobody inspects the spammish repetition", 0, 0xE2293B2F),
    ],
)
def test_xxh32_equals_the_published_values(data: bytes, seed: int, expected: int) -> None:
    assert xxh32(data, seed) == expected


def test_a_different_polynomial_is_not_taken_for_this_one() -> None:
    assert crc32c(b"kafka") != zlib.crc32(b"kafka")
