"""Change logs: what a record says about a row, and tables that follow."""
