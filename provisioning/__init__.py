"""Turn pins into verified directories, and those into environments."""
