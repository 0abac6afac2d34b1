"""Large language models: static decoders on the emulator, judged by their tokens."""
