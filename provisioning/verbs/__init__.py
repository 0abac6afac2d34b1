"""One module per verb. It defines the verb's arguments, and runs the verb."""
