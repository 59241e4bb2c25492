// Reference implementation of an exchange: plain copies in one address space. Simple and slow on
// purpose; the real implementation is tested against it and shares no code with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shiplap/dispatch/metadata.h"

namespace shiplap::dispatch {

// The buffers of all ranks: the tokens of rank r, `width` elements each.
template <class T>
using Buffers = std::vector<std::vector<T>>;
// The same, not owning.
template <class T>
using BufferViews = std::vector<std::span<T>>;

// Copies every row to all its destinations. It does not sum or detect overlaps: the last write
// wins. Throws InputError D404 if a copy is out of bounds, D400 if there is not one buffer per
// rank.
void orchestrate_simulate(const Buffers<std::byte>& input, Buffers<std::byte>& output,
                          const Metadata& metadata, std::int64_t row_bytes);
void orchestrate_simulate(const BufferViews<const std::byte>& input,
                          const BufferViews<std::byte>& output, const Metadata& metadata,
                          std::int64_t row_bytes);

// The reverse direction of keys and values: adds every row to its destinations, ordered by rank,
// then row. REQUIRES: `output` is zero.
void sum_simulate(const Buffers<float>& input, Buffers<float>& output, const Metadata& metadata,
                  std::int64_t width);
// T is float, double, std::int32_t or std::int64_t.
template <class T>
void sum_simulate(const BufferViews<const T>& input, const BufferViews<T>& output,
                  const Metadata& metadata, std::int64_t width);

}  // namespace shiplap::dispatch
