"""Producer ids, and the room of the transaction coordinator."""
