"""Which files a file, a session or a case depends on, derived from the tree itself."""
