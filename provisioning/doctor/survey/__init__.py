"""What is there: files, tools, variables, devices; no judgement. One module a subject."""
