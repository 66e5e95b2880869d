"""The compiled modules; everything else stands in pyproject.toml."""

import sys
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

RECORDS = "src/ottla/protocol/records"

extensions = [
    Extension(
        f"ottla.protocol.records.{name}",
        [f"{RECORDS}/{name}.pyx"],
        include_dirs=[RECORDS],
        depends=glob(f"{RECORDS}/*.h") + glob(f"{RECORDS}/*.pxi"),
        extra_compile_args=["/O2"] if sys.platform == "win32" else ["-O3"],
    )
    for name in ("_codec", "_arrow")
]

setup(ext_modules=cythonize(extensions, language_level=3))
