// Small plans for the oracle and check to disagree about: all of a kind, and random ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace shiplap::oracle {

// Every rank has up to `longest` of these operations. `letters` are lines of text; in them, `#` is
// the number of the operation and `$` of the one before it.
struct Family {
  std::string name;
  std::string head;  // lists and tensors
  std::string body;  // buffers, streams, facts
  std::vector<std::string> letters;
  std::size_t ranks = 2;
  std::size_t longest = 2;
  enum class Symmetry : std::uint8_t {
    none,
    rotation,  // of two plans that differ by turning the ring of ranks, one is enough
    equal,     // all ranks do the same
  };
  Symmetry symmetry = Symmetry::rotation;
};

[[nodiscard]] std::vector<Family> families();

// Calls `look` with the text of each plan of a family.
void for_each_plan(const Family& family, const std::function<void(const std::string&)>& look);

// Whether it can be read, and expanded on every rank.
[[nodiscard]] bool has_meaning(const std::string& text);

// Sound with eager sends.
[[nodiscard]] std::string random_sound(std::uint64_t seed);

// Up to 4 ranks (now and then 8) with up to about 12 operations. Most are sound but for one or two
// random changes. The same for the same seed.
[[nodiscard]] std::string random_small(std::uint64_t seed);

// About values: training steps, attention, products and any computation, on 1 to 4 ranks.
[[nodiscard]] std::string random_sound_values(std::uint64_t seed);
// The same, and half of them with wrong statements or wrong operations. The same for the same seed.
[[nodiscard]] std::string random_values(std::uint64_t seed);

}  // namespace shiplap::oracle
