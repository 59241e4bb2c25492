// Memoizes collectives that only move rows: what they deliver, by what they are given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "shiplap/check/content_internal.h"
#include "shiplap/check/id_table_internal.h"

namespace shiplap::check {

class CallMemo {
 public:
  // The contents of several buffers.
  using Lists = std::vector<Pieces>;

  explicit CallMemo(Contents& contents) : contents_(contents) {}

  // Returns compute(), or what it returned for the same call on inputs that are a translation of
  // these (call_memo.cc), translated. REQUIRES: the contents of all inputs are known, and compute()
  // depends on nothing else than `call` and the inputs, and on those as `Contents` does: it slices,
  // binds, joins and fits pieces.
  Lists get(std::span<const std::int64_t> call, const Lists& inputs,
            const std::function<Lists()>& compute);

  [[nodiscard]] std::int64_t computed() const { return computed_; }

 private:
  // The instance of the first content, and where the first run of each dimension begins.
  struct Origin {
    std::int64_t instance = 0;
    std::vector<std::int32_t> begins;  // by dimension; kAbsent: it does not occur
  };
  struct Entry {
    std::vector<std::int64_t> key;
    Origin origin;
    Lists outputs;
  };

  static constexpr std::int32_t kAbsent = std::numeric_limits<std::int32_t>::min();

  // Writes `key_` and `origin_`.
  void describe(std::span<const std::int64_t> call, const Lists& inputs);
  void describe(const Content& content);
  [[nodiscard]] std::int32_t begin_of(const Run& run);
  // The outputs of an entry, at `origin_`.
  [[nodiscard]] Lists translated(const Entry& entry);
  [[nodiscard]] Piece translated(const Piece& piece, const Origin& from);

  Contents& contents_;
  std::vector<Entry> entries_;
  IdTable by_hash_;
  std::size_t size_ = 0;  // of all keys and outputs, in words
  std::int64_t computed_ = 0;
  std::vector<std::int64_t> key_;
  Origin origin_;
  std::vector<Run> runs_;
};

}  // namespace shiplap::check
