// What a plugin offers. It is built against one MPI library and holds its own copy of this module,
// so only plain pointers and classes without shared state cross the border.
#pragma once

#include <functional>

#include "shiplap/comm/mpi/mpi.h"

namespace shiplap::comm {

struct MpiPlugin {
  int version = 0;  // of this struct and of Communicator
  void (*run)(const MpiOptions& options, const std::function<void(Communicator&)>& work) = nullptr;
};

inline constexpr int kMpiPluginVersion = 3;

}  // namespace shiplap::comm

// The name by which it is found. Not defined in a program that has no transport linked in.
extern "C" [[gnu::weak]] const shiplap::comm::MpiPlugin shiplap_mpi_plugin;  // NOLINT
