extern "C" int tiny_quantized() { return 1; }
