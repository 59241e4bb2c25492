// Formats quantities in fmt::format() with to_string().
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <string>

#include "shiplap/base/units.h"

template <class Quantity>
  requires(std::same_as<Quantity, shiplap::Seconds> || std::same_as<Quantity, shiplap::Bytes>)
struct fmt::formatter<Quantity> : fmt::formatter<std::string> {
  auto format(Quantity quantity, fmt::format_context& context) const {
    return fmt::formatter<std::string>::format(to_string(quantity), context);
  }
};
