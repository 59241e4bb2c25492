// Serialization of small messages between ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/comm/communicator.h"

namespace shiplap::run {

class Packer {
 public:
  void put(std::int64_t number) { put_bytes(&number, sizeof number); }
  void put(double number) { put_bytes(&number, sizeof number); }
  void put(const std::string& text) {
    put(std::ssize(text));
    put_bytes(text.data(), text.size());
  }
  [[nodiscard]] std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void put_bytes(const void* data, std::size_t count) {
    const auto* const first = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), first, first + count);
  }
  std::vector<std::byte> bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  std::int64_t number() { return get<std::int64_t>(); }
  double fraction() { return get<double>(); }
  std::string text() {
    const auto count = static_cast<std::size_t>(number());
    ensure(count <= bytes_.size() - at_, "the string is complete");
    std::string text(count, '\0');
    std::memcpy(text.data(), bytes_.data() + at_, count);
    at_ += count;
    return text;
  }

 private:
  template <class T>
  T get() {
    ensure(sizeof(T) <= bytes_.size() - at_, "the value is complete");
    T value{};
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::vector<std::byte> bytes_;
  std::size_t at_ = 0;
};

// Returns the bytes of each rank, by rank. Collective.
[[nodiscard]] inline std::vector<std::vector<std::byte>> gather_bytes(
    comm::Communicator& world, const std::vector<std::byte>& local) {
  const std::int64_t size = std::ssize(local);
  std::vector<std::int64_t> sizes(world.size());
  world.all_gather(std::span(&size, 1), std::span(sizes));
  std::size_t total = 0;
  for (const std::int64_t one : sizes) total += static_cast<std::size_t>(one);
  std::vector<std::byte> all(total);
  world.all_gather_v(std::span<const std::byte>(local), std::span(all), {.counts = sizes});
  std::vector<std::vector<std::byte>> parts;
  auto from = all.begin();
  for (const std::int64_t one : sizes) {
    parts.emplace_back(from, from + one);
    from += one;
  }
  return parts;
}

}  // namespace shiplap::run
