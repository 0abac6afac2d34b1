"""The user interface: command line, terminals, progress, and the processes that verbs start."""
