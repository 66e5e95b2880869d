"""The compiled modules; everything else stands in pyproject.toml."""

from Cython.Build import cythonize
from setuptools import Extension, setup

COMPILED = (
    "network._frames",
    "network._sending",
    "network._wire",
    "log._search",
    "log._tail",
    "handlers._fetch_plain",
    "handlers._produce_run",
)

extensions = [
    Extension(
        f"ottla.broker.{name}",
        [f"src/ottla/broker/{name.replace('.', '/')}.pyx"],
        extra_compile_args=["-O3"],
    )
    for name in COMPILED
]

setup(ext_modules=cythonize(extensions, language_level=3))
