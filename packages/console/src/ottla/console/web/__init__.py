"""Parts of all pages: guards of requests, rendering, formats of numbers and times, and tables."""
