"""Topics of one cluster copied to another, each record once, and which offset became which."""
