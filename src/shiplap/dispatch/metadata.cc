#include "shiplap/dispatch/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/error.h"

namespace shiplap::dispatch {
namespace {

constexpr std::uint64_t kMaxCount = std::numeric_limits<std::uint32_t>::max();

std::uint32_t counted(std::uint64_t number, const char* what) {
  if (number <= kMaxCount) return static_cast<std::uint32_t>(number);
  throw InputError(
      Diagnostic{.code = "D410", .what = fmt::format("{} {} do not fit 32 bits", number, what)});
}

// An order-dependent hash.
class Hash {
 public:
  void add(std::uint64_t number) {
    state_ = (state_ ^ number) * 0x9e3779b97f4a7c15;
    state_ ^= state_ >> 29;
  }
  [[nodiscard]] std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325;
};

}  // namespace

std::string_view name(ArrivalMode arrival) {
  return arrival == ArrivalMode::placed ? "placed" : "summed";
}

std::uint32_t Metadata::max_seqs() const {
  std::uint32_t most = 0;
  for (int rank = 0; rank < world_size(); ++rank) most = std::max(most, num_seqs(rank));
  return most;
}

Metadata::Row Metadata::row(int rank, std::uint32_t index) const {
  const std::size_t row = first_row_[rank] + std::size_t{index};
  const std::uint32_t begin = begins_[row + at(rank)];
  const std::size_t first = max_cp_ == 0 ? row : first_copy_[row];
  const std::size_t last = max_cp_ == 0 ? row + 1 : first_copy_[row + 1];
  return {.begin = begin,
          .length = begins_[row + at(rank) + 1] - begin,
          .copies = std::span(copies_).subspan(first, last - first)};
}

std::vector<std::uint64_t> Metadata::num_recv_tokens(int rank) const {
  std::vector<std::uint64_t> tokens(at(world_size()) + 1);
  for (int from = 0; from < world_size(); ++from) {
    for (std::uint32_t i = 0; i < num_seqs(from); ++i) {
      throw_if_cancelled();
      const Row one = row(from, i);
      for (const Copy& copy : one.copies) {
        if (copy.rank == rank) tokens[from] += one.length;
      }
    }
    tokens.back() += tokens[from];
  }
  return tokens;
}

Bytes Metadata::bytes() const {
  const auto size = [](const auto& values) {
    return static_cast<std::int64_t>(values.capacity() * sizeof(values[0]));
  };
  return {static_cast<std::int64_t>(sizeof(Metadata)) + size(first_row_) + size(begins_) +
          size(first_copy_) + size(copies_) + size(received_)};
}

std::array<std::uint64_t, Metadata::kHashedFields.size()> Metadata::hashes() const {
  Hash world;
  Hash lengths;
  Hash ranks;
  Hash offsets;
  Hash arrival;
  world.add(static_cast<std::uint64_t>(world_size()));
  for (const std::uint32_t first : first_row_) lengths.add(first);
  for (const std::uint32_t begin : begins_) lengths.add(begin);
  ranks.add(static_cast<std::uint64_t>(max_cp_));
  for (const std::uint32_t first : first_copy_) ranks.add(first);
  for (const Copy& copy : copies_) {
    ranks.add(static_cast<std::uint64_t>(copy.rank));
    offsets.add(copy.offset);
  }
  arrival.add(static_cast<std::uint64_t>(arrival_));
  return {world.value(), lengths.value(), ranks.value(), offsets.value(), arrival.value()};
}

// ---- the builder

Metadata::Builder::Builder(const TableShape& shape) : shape_(shape) {
  metadata_.max_cp_ = shape.max_cp;
  metadata_.arrival_ = shape.arrival;
  metadata_.first_row_.reserve(at(shape.world_size) + 1);
  metadata_.received_.resize(at(shape.world_size));
  if (shape.world_size > 0) metadata_.begins_.push_back(0);
  if (shape.max_cp > 0) metadata_.first_copy_.push_back(0);
}

void Metadata::Builder::reserve(const Capacity& capacity) {
  metadata_.begins_.reserve(capacity.rows + at(shape_.world_size));
  if (shape_.max_cp > 0) metadata_.first_copy_.reserve(capacity.rows + 1);
  metadata_.copies_.reserve(capacity.copies);
}

void Metadata::Builder::add_row(std::uint32_t length, std::span<const Copy> copies) {
  if (shape_.max_cp == 0) {
    ensure(copies.size() == 1, "a row of a 2-D table has one copy");
  } else {
    while (!copies.empty() && copies.back().rank == -1) copies = copies.first(copies.size() - 1);
    ensure(copies.size() <= at(shape_.max_cp), "a row has no more copies than the table allows");
  }
  begin_ += length;
  metadata_.begins_.push_back(counted(begin_, "tokens of one rank"));
  metadata_.copies_.insert(metadata_.copies_.end(), copies.begin(), copies.end());
  for (const Copy& copy : copies) {
    if (copy.rank >= 0 && copy.rank < shape_.world_size) {
      metadata_.received_[copy.rank] += length;
    }
  }
  if (shape_.max_cp > 0) {
    metadata_.first_copy_.push_back(counted(metadata_.copies_.size(), "copies"));
  }
}

void Metadata::Builder::end_rank() {
  const std::size_t ranks = metadata_.first_row_.size();
  ensure(ranks <= at(shape_.world_size), "end_rank() is called once per rank");
  metadata_.first_row_.push_back(counted(metadata_.begins_.size() - ranks, "rows"));
  begin_ = 0;
  if (ranks < at(shape_.world_size)) metadata_.begins_.push_back(0);
}

Metadata Metadata::Builder::take() {
  ensure(metadata_.first_row_.size() == at(shape_.world_size) + 1,
         "end_rank() was called for every rank");
  return std::move(metadata_);
}

}  // namespace shiplap::dispatch
