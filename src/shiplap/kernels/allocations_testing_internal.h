// Counts the allocations of the test program: allocations_testing.cc replaces operator new.
#pragma once

#include <atomic>
#include <cstddef>

namespace shiplap::kernels {

// Whether anyone counts, and what was asked for meanwhile.
extern std::atomic<bool> counting;
extern std::atomic<std::size_t> allocations;
extern std::atomic<std::size_t> largest_allocation;

}  // namespace shiplap::kernels
