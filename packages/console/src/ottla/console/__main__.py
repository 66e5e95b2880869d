"""`python -m ottla.console`: the same as `ottla console`."""

from ottla.console.cli import console

if __name__ == "__main__":
    console(prog_name="ottla console")
