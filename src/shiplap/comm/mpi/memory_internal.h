// Reads the memory of another process of the same host, where the kernel allows it
// (process_vm_readv of Linux): one copy, however scattered the parts are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace shiplap::comm::memory {

// What a process sends to the others, so that they can test whether they can read its memory.
struct MemoryProbe {
  std::uint64_t host = 0;  // hash of boot id and namespaces; 0: disabled
  std::int64_t process = 0;
  std::uint64_t address = 0;  // of the cookie
  std::uint64_t cookie = 0;
};
// Disabled by SHIPLAP_SHARED_MEMORY=0 in the environment.
[[nodiscard]] MemoryProbe make_probe();

// Reads the cookie.
[[nodiscard]] bool can_read(const MemoryProbe& probe);

struct RemoteRead {
  std::uint64_t address = 0;  // in the other process
  std::span<std::byte> to;
};
// Returns 0 or an errno.
[[nodiscard]] int read(std::int64_t process, std::span<const RemoteRead> reads);

}  // namespace shiplap::comm::memory
