"""The compiled modules; everything else stands in pyproject.toml."""

import sys

from Cython.Build import cythonize
from setuptools import Extension, setup

RECORDS = "src/ottla/protocol/records"

extensions = [
    Extension(
        "ottla.protocol.records._codec",
        [f"{RECORDS}/_codec.pyx"],
        include_dirs=[RECORDS],
        depends=[f"{RECORDS}/crc32c.h", f"{RECORDS}/wire.h"],
        extra_compile_args=["/O2"] if sys.platform == "win32" else ["-O3"],
    )
]

setup(ext_modules=cythonize(extensions, language_level=3))
