"""From due batches to acknowledgements: numbers, requests, responses, retries."""
