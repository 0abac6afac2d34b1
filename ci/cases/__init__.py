"""Takes a case through compiling, running and judging to its row in the report. All engines and
runners share this code."""
