"""Pin -> verified directory -> environment."""
