"""ACLs: rules about resources by pattern, and the authorizer that decides by them as Kafka's does."""
