"""A model made ready for QNN: read or exported, quantized, compiled into a context binary."""
