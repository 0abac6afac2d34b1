"""The jobs of a plan: their matrix, their shards, what they left and the verdict on it."""
