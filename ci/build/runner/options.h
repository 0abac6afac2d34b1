// Runtime options of the QNN backend.
#pragma once

#include <string>

#include "flags.h"

namespace qnn_ci {

// Gives the QNN backend the options that the flags name; must run before a method is loaded.
// Throws Failure(kEnvironment) when the backend is not registered or refuses them.
void set_runtime_options(const Flags& flags);

// Empty when the QNN libraries can be loaded, else the loader's reason.
std::string explain_qnn_libraries();

}  // namespace qnn_ci
