"""This project's small decoder: weights.bin and tokenizer.bin in llama2.c's formats, from
tests/stand_ins/tiny_decoder.py."""

PROMPTS = ("Ben has a", "Ann has a", "Tom has a")
