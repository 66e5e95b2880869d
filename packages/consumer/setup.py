"""The compiled modules, which is every .pyx there is; everything else stands in pyproject.toml."""

import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SOURCES = sorted(Path("src").rglob("*.pyx"))
INCLUDED = [str(path) for pattern in ("*.h", "*.pxi") for path in sorted(Path("src").rglob(pattern))]

extensions = [
    Extension(
        ".".join(source.relative_to("src").with_suffix("").parts),
        [str(source)],
        include_dirs=[str(source.parent)],
        depends=INCLUDED,
        extra_compile_args=["/O2"] if sys.platform == "win32" else ["-O3"],
    )
    for source in SOURCES
]

setup(ext_modules=cythonize(extensions, language_level=3))
