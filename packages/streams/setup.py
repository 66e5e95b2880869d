"""The compiled modules, which is every .pyx there is; everything else stands in pyproject.toml."""

import sys
from glob import glob
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SOURCES = sorted(Path("src").rglob("*.pyx"))
INCLUDED = sorted(glob("src/**/*.h", recursive=True) + glob("src/**/*.px[di]", recursive=True))

extensions = [
    Extension(
        ".".join(source.relative_to("src").with_suffix("").parts),
        [str(source)],
        include_dirs=["src"],
        depends=INCLUDED,
        extra_compile_args=["/O2"] if sys.platform == "win32" else ["-O3"],
    )
    for source in SOURCES
]

setup(ext_modules=cythonize(extensions, include_path=["src"], language_level=3))
