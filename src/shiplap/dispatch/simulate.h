// The referee: what an exchange does, as plain copies in one memory. Slow and obvious on purpose;
// what runs for real is compared with it and shares nothing with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shiplap/dispatch/metadata.h"

namespace shiplap::dispatch {

// Buffers of all ranks: rank r's tokens, one after another, `width` elements each.
template <class T>
using Buffers = std::vector<std::vector<T>>;
// The same where the memory is somebody else's.
template <class T>
using BufferViews = std::vector<std::span<T>>;

// Copies every row to all its places. It does not send, sum, or check: tokens that arrive in one
// place overwrite each other, the last one stays. Throws InputError D404 rather than write outside
// a buffer, D400 if there is not one buffer per rank.
void orchestrate_simulate(const Buffers<std::byte>& input, Buffers<std::byte>& output,
                          const Metadata& metadata, std::int64_t row_bytes);
void orchestrate_simulate(const BufferViews<const std::byte>& input,
                          const BufferViews<std::byte>& output, const Metadata& metadata,
                          std::int64_t row_bytes);

// The way back of keys and values: adds every row to what its places hold, ranks in order, then
// rows. `output` begins at zero.
void sum_simulate(const Buffers<float>& input, Buffers<float>& output, const Metadata& metadata,
                  std::int64_t width);
// T is float, double, std::int32_t or std::int64_t.
template <class T>
void sum_simulate(const BufferViews<const T>& input, const BufferViews<T>& output,
                  const Metadata& metadata, std::int64_t width);

}  // namespace shiplap::dispatch
