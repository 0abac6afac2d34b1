"""What a person meets: the command line, terminals, progress, and the processes that we start."""
