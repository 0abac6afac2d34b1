"""URL -> verified file."""
