// A byzantine rank: its messages are changed, repeated, dropped and forged on their way out.
#pragma once

#include "network.h"

namespace shiplap::simulation {

// `hello_bytes` is the size of the handshake, which is not changed.
[[nodiscard]] Tamper make_tamper(std::uint64_t seed, std::size_t hello_bytes);

}  // namespace shiplap::simulation
