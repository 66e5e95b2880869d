"""Pipelines: declared in a file, run on Spark or on the SDKs.

`reading` makes a job of a file, `run` runs it; what a kind of pipeline does is in a module of its own.
"""
