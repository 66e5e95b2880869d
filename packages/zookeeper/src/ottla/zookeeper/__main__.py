"""`python -m ottla.zookeeper`: the same as `ottla zookeeper`."""

from ottla.zookeeper.cli import zookeeper

if __name__ == "__main__":
    zookeeper(prog_name="ottla zookeeper")
