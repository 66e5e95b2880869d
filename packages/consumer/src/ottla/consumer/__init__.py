"""An asyncio consumer for Kafka and Ottla."""
