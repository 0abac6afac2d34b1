"""Fetch and verify pinned artifacts, and set up environments from them."""
