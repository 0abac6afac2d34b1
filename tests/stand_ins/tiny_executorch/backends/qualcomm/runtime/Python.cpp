// An empty module, without Python's headers: these are the parts of PyModuleDef that CPython 3.10
// to 3.13 read. It shows the suffix, the place and the policy of an adaptor.
#include <cstddef>

struct Definition {
  std::size_t references = 1;
  void* type = nullptr;
  void* base[3] = {};
  const char* name = "PyQnnManagerAdaptor";
  const char* doc = nullptr;
  std::ptrdiff_t state_size = -1;
  void* rest[5] = {};
};

#ifdef TINY_NO_MODULE // one that Python cannot import
extern "C" void* PyInit_PyQnnManagerAdaptor() { return nullptr; }
#elif defined(TINY_LACKS) // one that needs a module of Python's
extern "C" void* PyImport_ImportModule(const char*);
extern "C" void* PyInit_PyQnnManagerAdaptor() { return PyImport_ImportModule("tiny_lacks"); }
#else
extern "C" void* PyModule_Create2(Definition*, int);
static Definition definition;
extern "C" void* PyInit_PyQnnManagerAdaptor() { return PyModule_Create2(&definition, 1013); }
extern "C" void* PyInit_PyQnnWrapperAdaptor() { return PyModule_Create2(&definition, 1013); }
#endif
