"""What exists: files, tools, variables, devices; no judgement. One module a subject."""
