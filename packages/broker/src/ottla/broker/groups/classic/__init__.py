"""The classic group protocol: members, rebalances, and the state of a group."""
