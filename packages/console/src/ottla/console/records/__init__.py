"""Records as the console shows them: read from leaders, labelled by their transactions, and made readable."""
