"""Derive from a tree which files another file, a session or a case depends on."""
