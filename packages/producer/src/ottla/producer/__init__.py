"""An asyncio producer for Kafka and Ottla."""
