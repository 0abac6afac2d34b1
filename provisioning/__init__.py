"""Fetch pinned artifacts into verified directories, and set up environments from them."""
