"""The content-addressed store: publish directories, lock them, find differences, remove garbage."""
