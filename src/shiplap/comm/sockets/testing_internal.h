// For the tests of this folder: ranks as threads, and the exceptions they threw.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/sockets/socket_internal.h"
#include "shiplap/comm/sockets/sockets.h"

namespace shiplap::comm {

// A store in memory, as that of a coordinator.
class Store final : public Rendezvous {
 public:
  void put(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::optional<std::string> get(const std::string& key, Seconds within) override {
    std::unique_lock lock(mutex_);
    const bool is_there = changed_.wait_for(lock, std::chrono::duration<double>(within.value),
                                            [&] { return values_.contains(key); });
    return is_there ? std::optional(values_.at(key)) : std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

// Every rank is a thread with connections of its own. Returns the exception of each, by rank.
inline std::vector<std::exception_ptr> on_sockets(int ranks, const SocketOptions& options,
                                                  const std::function<void(Communicator&)>& work) {
  Store store;
  std::vector<std::exception_ptr> thrown(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto world = connect({.rank = rank, .size = ranks}, store, options);
        work(*world);
      } catch (...) {
        thrown[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

// An address at which nothing listens.
inline std::string free_address() {
  return to_string(listen_at({.host = "127.0.0.1"}, 1).local_address());
}

template <class T>
T require_value(std::optional<T> value) {
  if (!value) throw std::runtime_error("the value is missing");
  return *std::move(value);
}

// The text of an exception; empty if there is none.
inline std::string text_of(const std::exception_ptr& thrown) {
  if (thrown == nullptr) return "";
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  }
}

inline std::string text_thrown(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// "D307"; empty if nothing was thrown.
inline std::string code_thrown(const std::function<void()>& act) {
  const std::string text = text_thrown(act);
  const std::size_t begin = text.find("[D");
  return begin == std::string::npos ? text : text.substr(begin + 1, 4);
}

}  // namespace shiplap::comm
