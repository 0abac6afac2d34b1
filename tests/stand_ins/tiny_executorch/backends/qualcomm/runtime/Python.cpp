// No module: importing it fails. It shows the suffix, the place and the policy of an adaptor.
extern "C" void* PyInit_PyQnnManagerAdaptor() { return nullptr; }
