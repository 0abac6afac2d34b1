"""Our decoder: weights.bin and tokenizer.bin in llama2.c's formats, made by train.py."""

PROMPTS = ("Ben has a", "Ann has a", "Tom has a")
