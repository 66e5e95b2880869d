"""Producer ids, and the transaction coordinator."""
