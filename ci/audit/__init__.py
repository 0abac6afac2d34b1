"""Find which parts of a model QNN takes, what the rest costs, and where accuracy is lost."""
