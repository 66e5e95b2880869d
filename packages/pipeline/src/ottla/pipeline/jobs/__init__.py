"""Pipelines: declared in a file, run on Spark or on the SDKs.

`declaration_files` reads a job from a file, `run` runs it; each kind of pipeline has a module of its own.
"""
