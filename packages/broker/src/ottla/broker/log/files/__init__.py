"""The file system as logs use it."""
