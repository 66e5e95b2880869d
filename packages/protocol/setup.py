"""The compiled modules; everything else stands in pyproject.toml."""

from setuptools import setup

setup()
