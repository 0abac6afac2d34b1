"""What QNN takes of a model, what it costs, and where its accuracy goes."""
