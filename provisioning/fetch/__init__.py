"""Download files from URLs, and verify them."""
