"""The verbs that judge cases, and the code they share."""
