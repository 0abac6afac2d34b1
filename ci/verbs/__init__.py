"""The verbs, one module each: arguments in, outcome out."""
