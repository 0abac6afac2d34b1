"""Facts that every room may state: findings. This package imports nothing of ci."""
