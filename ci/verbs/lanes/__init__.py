"""The verbs that judge cases, and the code that they share."""
