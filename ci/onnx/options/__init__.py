"""Options of the QNN execution provider: the table, and the judge of what is given."""
