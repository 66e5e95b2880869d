"""The logs of one broker and their directories."""
