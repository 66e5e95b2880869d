"""The compiled modules; everything else stands in pyproject.toml."""

from Cython.Build import cythonize
from setuptools import Extension, setup

extensions = [
    Extension(
        "ottla.broker.network._frames",
        ["src/ottla/broker/network/_frames.pyx"],
        extra_compile_args=["-O3"],
    )
]

setup(ext_modules=cythonize(extensions, language_level=3))
