"""The files on which a file, a session or a case depends, derived from the tree itself."""
