#include "shiplap/comm/failure.h"

#include <utility>

namespace shiplap::comm {

Failure::Failure(Diagnostic diagnostic)
    : std::runtime_error(render(diagnostic)), diagnostic_(std::move(diagnostic)) {}

}  // namespace shiplap::comm
