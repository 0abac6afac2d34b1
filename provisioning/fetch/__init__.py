"""Download URLs into verified files."""
