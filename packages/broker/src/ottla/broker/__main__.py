"""`python -m ottla.broker`: the same as `ottla broker`."""

from ottla.broker.server.cli import broker

if __name__ == "__main__":
    broker(prog_name="ottla broker")
