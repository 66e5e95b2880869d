"""From due batches to acknowledgements: compression, sequence numbers, requests, responses, retries."""

__all__: list[str] = []
