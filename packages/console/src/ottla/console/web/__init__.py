"""What all pages share: guards of requests, rendering, formats of numbers and times, and tables."""
