"""Compatibility of schemas, as pure functions: may a reader's schema read all that a writer's wrote?

Each kind has a module with a `parse...` function, which bounds and checks a text, and with
`incompatibilities(reader, writer)`. `levels.py` applies them to the versions of a subject.
"""
