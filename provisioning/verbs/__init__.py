"""One module a verb: arguments in, outcome out."""
