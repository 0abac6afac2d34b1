"""The project's workflows, read, judged and executed without GitHub."""
