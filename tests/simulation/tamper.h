// A rank that lies: its messages are changed, repeated, left out and made up on their way out.
#pragma once

#include "network.h"

namespace shiplap::simulation {

// Bytes in front of the first message: what ranks say when they meet, which stays as it is.
[[nodiscard]] Tamper make_tamper(std::uint64_t seed, std::size_t hello_bytes);

}  // namespace shiplap::simulation
