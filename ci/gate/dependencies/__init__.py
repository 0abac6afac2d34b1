"""Find the files of a tree that a file, a session or a case depends on."""
