// Reading the memory of another process of the same machine, where the kernel allows it
// (process_vm_readv of Linux): one copy, however scattered the parts are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace shiplap::comm::memory {

// What a process tells the others, so that they can find out whether they can read it.
struct Card {
  std::uint64_t machine = 0;  // the same for processes that know each other by number; 0: none
  std::int64_t process = 0;
  std::uint64_t address = 0;  // of a number
  std::uint64_t number = 0;
};
// With SHIPLAP_SHARED_MEMORY=0 in the environment it says that nobody may.
[[nodiscard]] Card own_card();

// Tries it.
[[nodiscard]] bool can_read(const Card& card);

struct Part {
  std::uint64_t address = 0;  // there
  std::span<std::byte> to;
};
// Returns 0, or the error of the system.
[[nodiscard]] int read(std::int64_t process, std::span<const Part> parts);

}  // namespace shiplap::comm::memory
