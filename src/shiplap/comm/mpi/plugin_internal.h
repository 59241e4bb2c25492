// The interface of a plugin. It is built against one MPI library and contains its own copy of this
// module, so only plain pointers and classes without global state cross the boundary.
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

// The exported symbol. Null in a program without a linked-in transport.
extern "C" [[gnu::weak]] const shiplap::comm::MpiPlugin shiplap_mpi_plugin;  // NOLINT
