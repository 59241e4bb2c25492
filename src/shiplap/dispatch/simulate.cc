#include "shiplap/dispatch/simulate.h"

#include <fmt/format.h>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/error.h"

namespace shiplap::dispatch {
namespace {

// Calls act(sender, row, copy) for every copy, ordered by sender, then row.
template <class Act>
void for_each_copy(const Metadata& metadata, const Act& act) {
  for (int rank = 0; rank < metadata.world_size(); ++rank) {
    for (std::uint32_t i = 0; i < metadata.num_seqs(rank); ++i) {
      throw_if_cancelled();
      const Metadata::Row row = metadata.row(rank, i);
      for (const Copy& copy : row.copies) {
        if (copy.rank >= 0) act(static_cast<std::size_t>(rank), row, copy);
      }
    }
  }
}

// Source and destination of a copy, in elements.
struct CopySpan {
  std::size_t from = 0;
  std::size_t to = 0;
  std::size_t count = 0;
};
// Throws D404 if the copy is out of bounds.
template <class T>
CopySpan span_of(std::span<const T> input, const BufferViews<T>& output, const Metadata::Row& row,
                 const Copy& copy, std::size_t width) {
  const CopySpan span{
      .from = row.begin * width, .to = copy.offset * width, .count = row.length * width};
  const bool exists = static_cast<std::size_t>(copy.rank) < output.size();
  if (exists && span.from + span.count <= input.size() &&
      span.to + span.count <= output[copy.rank].size()) {
    return span;
  }
  throw InputError(
      Diagnostic{.code = "D404",
                 .where = {.rank = copy.rank},
                 .what = fmt::format("out of bounds: tokens {} to {} are outside the buffer",
                                     copy.offset, std::uint64_t{copy.offset} + row.length)});
}

template <class T>
void check_ranks(const BufferViews<const T>& input, const BufferViews<T>& output,
                 const Metadata& metadata) {
  const auto ranks = static_cast<std::size_t>(metadata.world_size());
  if (input.size() == ranks && output.size() == ranks) return;
  throw InputError(
      Diagnostic{.code = "D400",
                 .what = fmt::format("buffer count mismatch: {} ranks, {} input and {} "
                                     "output buffers",
                                     ranks, input.size(), output.size())});
}

template <class T>
BufferViews<const T> views_of(const Buffers<T>& buffers) {
  return {buffers.begin(), buffers.end()};
}

template <class T>
BufferViews<T> views_of(Buffers<T>& buffers) {
  return {buffers.begin(), buffers.end()};
}

}  // namespace

void orchestrate_simulate(const Buffers<std::byte>& input, Buffers<std::byte>& output,
                          const Metadata& metadata, std::int64_t row_bytes) {
  orchestrate_simulate(views_of(input), views_of(output), metadata, row_bytes);
}

void orchestrate_simulate(const BufferViews<const std::byte>& input,
                          const BufferViews<std::byte>& output, const Metadata& metadata,
                          std::int64_t row_bytes) {
  check_ranks(input, output, metadata);
  const auto width = static_cast<std::size_t>(row_bytes);
  for_each_copy(metadata, [&](std::size_t sender, const Metadata::Row& row, const Copy& copy) {
    const CopySpan span = span_of(input[sender], output, row, copy, width);
    for (std::size_t i = 0; i < span.count; ++i) {
      output[copy.rank][span.to + i] = input[sender][span.from + i];
    }
  });
}

void sum_simulate(const Buffers<float>& input, Buffers<float>& output, const Metadata& metadata,
                  std::int64_t width) {
  sum_simulate(views_of(input), views_of(output), metadata, width);
}

template <class T>
void sum_simulate(const BufferViews<const T>& input, const BufferViews<T>& output,
                  const Metadata& metadata, std::int64_t width) {
  check_ranks(input, output, metadata);
  const auto elements = static_cast<std::size_t>(width);
  for_each_copy(metadata, [&](std::size_t sender, const Metadata::Row& row, const Copy& copy) {
    const CopySpan span = span_of(input[sender], output, row, copy, elements);
    for (std::size_t i = 0; i < span.count; ++i) {
      output[copy.rank][span.to + i] += input[sender][span.from + i];
    }
  });
}

template void sum_simulate(const BufferViews<const float>&, const BufferViews<float>&,
                           const Metadata&, std::int64_t);
template void sum_simulate(const BufferViews<const double>&, const BufferViews<double>&,
                           const Metadata&, std::int64_t);
template void sum_simulate(const BufferViews<const std::int32_t>&, const BufferViews<std::int32_t>&,
                           const Metadata&, std::int64_t);
template void sum_simulate(const BufferViews<const std::int64_t>&, const BufferViews<std::int64_t>&,
                           const Metadata&, std::int64_t);

}  // namespace shiplap::dispatch
