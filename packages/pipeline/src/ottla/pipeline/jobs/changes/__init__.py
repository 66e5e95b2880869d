"""Change logs: their records, and tables that apply them."""
