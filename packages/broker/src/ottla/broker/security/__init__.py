"""Identity of clients: the principal that authentication gives and authorization asks for."""
