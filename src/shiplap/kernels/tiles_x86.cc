// bf16 GEMM on AMX tiles, on Linux.
//
// There are eight tile registers: four hold sums, the others operands. Blocks of 17 to 32 rows use
// two tiles of rows and two of columns (2 x 2 register blocking), so that each load is used twice.
// Blocks of up to 16 rows use one of rows and four of columns: four independent accumulators hide
// the latency of an instruction. The tiles of the last rows are configured to the remaining rows,
// so that nothing past the end is read.
//
// Loop order for the caches: panels of weights that fit into L2 are used by all blocks of rows
// before the next ones; within a block, a part of K whose rows fit into L1. The next panels are
// prefetched into L2 meanwhile.
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

#include "shiplap/base/error.h"
#include "shiplap/kernels/rows_internal.h"
#include "shiplap/kernels/simd_internal.h"
#include "shiplap/kernels/tiles_internal.h"

namespace shiplap::kernels {
namespace {

constexpr std::int64_t kTileElements = kStepElements / 2;
constexpr std::int64_t kCacheLine = 64;
constexpr std::int64_t kBlockRows = 2 * kTileRows;
// Size of the weights that stay in the L2 cache until the last block of rows has used them.
constexpr std::int64_t kL2Bytes = 256 << 10;
// Steps of the rows of a block that stay in the L1 cache.
constexpr std::int64_t kL1Steps = 16;
constexpr std::int64_t kMaxL2Panels = 16;
// With fewer blocks of rows, prefetching does not help.
constexpr std::int64_t kMinPrefetchBlocks = 2;

// The tile configuration, as LDTILECFG reads it.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::array<std::uint8_t, 14> reserved{};
  std::array<std::uint16_t, 16> row_bytes{};
  std::array<std::uint8_t, 16> rows{};
};
static_assert(sizeof(TileConfig) == 64);

enum class BlockKind : std::uint8_t { two_by_two, one_by_four };

// Tiles 0 to 3 are sums. Two by two: 4 and 5 are rows of a, 6 and 7 weights. One by four: 4 is rows
// of a, 5 to 7 are weights.
constexpr TileConfig tile_config(BlockKind kind, std::uint8_t last_rows) {
  TileConfig sizes;
  for (std::size_t i = 0; i < 8; ++i) {
    sizes.row_bytes[i] = kCacheLine;
    sizes.rows[i] = kTileRows;
  }
  if (kind == BlockKind::two_by_two) {
    for (const std::size_t i : {2U, 3U, 5U}) sizes.rows[i] = last_rows;
  } else {
    for (const std::size_t i : {0U, 1U, 2U, 3U, 4U}) sizes.rows[i] = last_rows;
  }
  return sizes;
}

// By kind and rows of the last tile.
using TileConfigs = std::array<std::array<TileConfig, kTileRows + 1>, 2>;
constexpr TileConfigs all_tile_configs() {
  TileConfigs all;
  for (std::uint8_t rows = 1; rows <= kTileRows; ++rows) {
    all[0][rows] = tile_config(BlockKind::two_by_two, rows);
    all[1][rows] = tile_config(BlockKind::one_by_four, rows);
  }
  return all;
}
constexpr TileConfigs kTileConfigs = all_tile_configs();

// Inline assembly: the compiler does not track tile registers, only the memory clobbers.
void configure(const TileConfig& sizes) { asm volatile("ldtilecfg %0" ::"m"(sizes)); }
void release() { asm volatile("tilerelease"); }

template <int kTile>
[[gnu::always_inline]] inline void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
[[gnu::always_inline]] inline void load_tile(const void* from, std::int64_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(stride) : "memory");
}
// The same with a non-temporal hint, so that the rows of a block stay in L1 from panel to panel.
template <int kTile>
[[gnu::always_inline]] inline void stream_tile(const Bf16* from) {
  asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(kCacheLine)
               : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void store_tile(void* to, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(to), "r"(stride) : "memory");
}
template <int kSum, int kA, int kWeights>
[[gnu::always_inline]] inline void add_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kWeights));
}

// Memory to prefetch into the L2 cache.
struct PrefetchRange {
  const std::byte* from = nullptr;
  const std::byte* end = nullptr;
  std::int64_t bytes_per_step = 0;
};

[[gnu::always_inline]] inline void prefetch_some(PrefetchRange& prefetch) {
  const std::byte* const end = std::min(prefetch.end, prefetch.from + prefetch.bytes_per_step);
  for (; prefetch.from < end; prefetch.from += kCacheLine) __builtin_prefetch(prefetch.from, 0, 2);
}

// Some steps of one block. Sums are 32 x 32 or 16 x 64.
struct TileBlock {
  const Bf16* a = nullptr;
  std::int64_t stride_a = 0;  // in bytes
  std::int64_t steps = 0;
  const Bf16* weights = nullptr;
  std::int64_t panel = 0;  // numbers from one panel to the next
  float* sums = nullptr;
  bool adds = false;  // to the existing sums
};

template <int kTile>
[[gnu::always_inline]] inline void begin_tile(const TileBlock& block, const float* sums,
                                              std::int64_t stride) {
  if (block.adds) return load_tile<kTile>(sums, stride);
  clear_tile<kTile>();
}

void multiply_two_by_two(const TileBlock& block, PrefetchRange& prefetch) {
  constexpr std::int64_t kStride = 2 * kCacheLine;
  begin_tile<0>(block, block.sums, kStride);
  begin_tile<1>(block, block.sums + 16, kStride);
  begin_tile<2>(block, block.sums + kTileRows * 32, kStride);
  begin_tile<3>(block, block.sums + kTileRows * 32 + 16, kStride);
  const Bf16* a = block.a;
  const Bf16* const a_below = a + kTileRows * block.stride_a / 2;
  const std::int64_t below = a_below - a;
  const Bf16* weights = block.weights;
  for (std::int64_t step = 0; step < block.steps; ++step) {
    stream_tile<6>(weights);
    load_tile<4>(a, block.stride_a);
    add_product<0, 4, 6>();
    stream_tile<7>(weights + kTileElements);
    add_product<1, 4, 7>();
    load_tile<5>(a + below, block.stride_a);
    add_product<2, 5, 6>();
    add_product<3, 5, 7>();
    prefetch_some(prefetch);
    a += kStepK;
    weights += kStepElements;
  }
  store_tile<0>(block.sums, kStride);
  store_tile<1>(block.sums + 16, kStride);
  store_tile<2>(block.sums + kTileRows * 32, kStride);
  store_tile<3>(block.sums + kTileRows * 32 + 16, kStride);
}

// Two panels, or the last one alone.
template <bool kIsSinglePanel>
void multiply_one_by_four(const TileBlock& block, PrefetchRange& prefetch) {
  constexpr std::int64_t kStride = 4 * kCacheLine;
  begin_tile<0>(block, block.sums, kStride);
  begin_tile<1>(block, block.sums + 16, kStride);
  if constexpr (!kIsSinglePanel) {
    begin_tile<2>(block, block.sums + 32, kStride);
    begin_tile<3>(block, block.sums + 48, kStride);
  }
  const Bf16* a = block.a;
  const Bf16* left = block.weights;
  const Bf16* right = left + block.panel;
  for (std::int64_t step = 0; step < block.steps; ++step) {
    load_tile<4>(a, block.stride_a);
    stream_tile<5>(left);
    add_product<0, 4, 5>();
    stream_tile<6>(left + kTileElements);
    add_product<1, 4, 6>();
    if constexpr (!kIsSinglePanel) {
      stream_tile<7>(right);
      add_product<2, 4, 7>();
      stream_tile<5>(right + kTileElements);
      add_product<3, 4, 5>();
    }
    prefetch_some(prefetch);
    if constexpr (!kIsSinglePanel) prefetch_some(prefetch);
    a += kStepK;
    left += kStepElements;
    right += kStepElements;
  }
  store_tile<0>(block.sums, kStride);
  store_tile<1>(block.sums + 16, kStride);
  if constexpr (kIsSinglePanel) return;
  store_tile<2>(block.sums + 32, kStride);
  store_tile<3>(block.sums + 48, kStride);
}

// Returns whether the epilogue only rounds to bf16.
bool only_rounds(const EpilogueStep& step) {
  return step.c.type == DType::bf16 && step.alpha == 1 && step.beta == 0 && step.bias == nullptr &&
         step.activation == Activation::none && step.pre_activation.data == nullptr;
}

// As store() of simd_internal.h, except that this instruction flushes subnormals to zero; sums of
// tiles are never subnormal.
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void round_sums(const EpilogueStep& step) {
  for (std::int64_t j = 0; j < step.columns; j += 32) {
    const std::int64_t count = std::min<std::int64_t>(32, step.columns - j);
    const __mmask32 mask = 0xffffffffU >> (32 - count);
    const float* from = step.sums + j;
    Bf16* to = static_cast<Bf16*>(step.c.data) + j;
    for (std::int64_t row = 0; row < step.rows; ++row) {
      const __m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_load_ps(from + 16), _mm512_load_ps(from));
      _mm512_mask_storeu_epi16(to, mask, reinterpret_cast<__m512i>(rounded));
      from += step.stride_sums;
      to += step.c.stride;
    }
  }
}

MatrixView submatrix(MatrixView whole, std::int64_t row, std::int64_t column) {
  if (whole.data != nullptr) whole.data = whole.at(row, column);
  return whole;
}

class TilesMultiplier {
 public:
  explicit TilesMultiplier(const TilesGemm& gemm)
      : gemm_(gemm),
        panels_(divide_up(gemm.epilogue.columns, kPanelN)),
        panel_(gemm.steps * kStepElements),
        l2_panels_(l2_panels(gemm.steps)),
        only_rounds_(shiplap::kernels::only_rounds(gemm.epilogue)) {}

  void run() {
    for (std::int64_t first = 0; first < panels_; first += l2_panels_) {
      if (gemm_.weights == nullptr) pack(first, std::min(panels_, first + l2_panels_));
      run_panels(first, std::min(panels_, first + l2_panels_));
    }
    release();
  }

 private:
  void pack(std::int64_t begin, std::int64_t end) {
    ConstMatrixView some = gemm_.unpacked;
    const std::int64_t column = begin * kPanelN;
    some.data = some.at(0, column);
    some.columns = std::min(some.columns, end * kPanelN) - column;
    pack_tiles(some, gemm_.pack_buffer);
    packed_begin_ = begin;
  }

  [[nodiscard]] const Bf16* weights_at(std::int64_t panel) const {
    if (gemm_.weights == nullptr) return gemm_.pack_buffer + (panel - packed_begin_) * panel_;
    return gemm_.weights + panel * panel_;
  }

  void run_panels(std::int64_t begin, std::int64_t end) {
    const std::int64_t rows = gemm_.epilogue.rows;
    prefetch_ = prefetch_after(end);
    for (std::int64_t row = 0; row < rows; row += kBlockRows) {
      const std::int64_t count = std::min(kBlockRows, rows - row);
      const bool is_low = count <= kTileRows;
      use(config_for(count));
      const std::int64_t width = is_low ? 2 : 1;
      for (std::int64_t step = 0; step < gemm_.steps; step += kL1Steps) {
        for (std::int64_t panel = begin; panel < end; panel += width) {
          run_block({.row = row,
                     .rows = count,
                     .panel = panel,
                     .panels = std::min(width, end - panel),
                     .step = step,
                     .steps = std::min(kL1Steps, gemm_.steps - step),
                     .sums = sums_.data() + (panel - begin) * kSumsPerPanel});
        }
      }
    }
  }

  static const TileConfig& config_for(std::int64_t rows) {
    const bool is_low = rows <= kTileRows;
    return kTileConfigs[is_low ? 1 : 0][is_low ? rows : rows - kTileRows];
  }

  void use(const TileConfig& sizes) {
    if (&sizes == used_) return;
    configure(sizes);
    used_ = &sizes;
  }

  // The position of a block in the GEMM.
  struct BlockPosition {
    std::int64_t row = 0;
    std::int64_t rows = 0;
    std::int64_t panel = 0;
    std::int64_t panels = 0;
    std::int64_t step = 0;
    std::int64_t steps = 0;
    float* sums = nullptr;
  };

  void run_block(const BlockPosition& at) {
    const TileBlock block{.a = gemm_.a + at.row * gemm_.stride_a + at.step * kStepK,
                          .stride_a = 2 * gemm_.stride_a,
                          .steps = at.steps,
                          .weights = weights_at(at.panel) + at.step * kStepElements,
                          .panel = panel_,
                          .sums = at.sums,
                          .adds = at.step > 0};
    if (at.rows > kTileRows) {
      multiply_two_by_two(block, prefetch_);
    } else if (at.panels == 2) {
      multiply_one_by_four<false>(block, prefetch_);
    } else {
      multiply_one_by_four<true>(block, prefetch_);
    }
    if (at.step + at.steps == gemm_.steps) finish(at);
  }

  void finish(const BlockPosition& at) const {
    const std::int64_t column = at.panel * kPanelN;
    EpilogueStep step = gemm_.epilogue;
    step.rows = at.rows;
    step.columns = std::min(at.panels * kPanelN, step.columns - column);
    step.sums = at.sums;
    step.stride_sums = (at.rows > kTileRows ? 1 : 2) * kPanelN;
    if (step.bias != nullptr) step.bias += column;
    step.pre_activation = submatrix(step.pre_activation, at.row, column);
    step.c = submatrix(step.c, at.row, column);
    only_rounds_ ? round_sums(step) : apply_epilogue(step);
  }

  // Returns what to prefetch during these panels, spread over the steps of all blocks.
  [[nodiscard]] PrefetchRange prefetch_after(std::int64_t end) const {
    const std::int64_t blocks = divide_up(gemm_.epilogue.rows, kBlockRows);
    if (blocks < kMinPrefetchBlocks || gemm_.weights == nullptr) return {};
    const Bf16* const from = end < panels_ ? gemm_.weights + end * panel_ : gemm_.next_weights;
    if (from == nullptr) return {};
    const std::int64_t panels = std::min(l2_panels_, end < panels_ ? panels_ - end : panels_);
    const auto* const bytes = reinterpret_cast<const std::byte*>(from);
    return {.from = bytes,
            .end = bytes + 2 * panels * panel_,
            .bytes_per_step = divide_up(2 * kStepElements / kCacheLine, blocks) * kCacheLine};
  }

  static constexpr std::int64_t kSumsPerPanel = kBlockRows * kPanelN;
  alignas(kCacheLine) std::array<float, kMaxL2Panels * kSumsPerPanel> sums_;  // of the panels in L2
  const TilesGemm& gemm_;
  std::int64_t panels_;
  std::int64_t panel_;      // in elements
  std::int64_t l2_panels_;  // in panels
  PrefetchRange prefetch_;
  bool only_rounds_;
  std::int64_t packed_begin_ = 0;
  const TileConfig* used_ = nullptr;
};

// Packs sixteen columns of a row-major step.
[[gnu::target("avx512f,avx512bw,avx512vl")]] void pack_rows(const Bf16* from, std::int64_t stride,
                                                            Bf16* to) {
  for (std::int64_t i = 0; i < kTileRows; ++i) {
    U16x16 even;
    U16x16 odd;
    std::memcpy(&even, from + 2 * i * stride, sizeof even);
    std::memcpy(&odd, from + (2 * i + 1) * stride, sizeof odd);
    const U32x16 pairs =
        __builtin_convertvector(even, U32x16) | (__builtin_convertvector(odd, U32x16) << 16);
    std::memcpy(&to[i * 32].bits, &pairs, sizeof pairs);
  }
}

// Packs sixteen columns of a column-major step: a 16 x 16 transposition of pairs by four perfect
// shuffles, each of which rotates the 8 index bits (row, column) by one.
[[gnu::target("avx512f,avx512bw,avx512vl")]] void pack_columns(const Bf16* from,
                                                               std::int64_t stride, Bf16* to) {
  U32x16 lines[2][16];
  for (std::size_t i = 0; i < 16; ++i)
    std::memcpy(&lines[0][i], from + static_cast<std::int64_t>(i) * stride, sizeof(U32x16));
  for (std::size_t round = 0; round < 4; ++round) {
    const U32x16* const old = lines[round % 2];
    U32x16* const now = lines[(round + 1) % 2];
    for (std::size_t i = 0; i < 8; ++i) {
      now[2 * i] = __builtin_shufflevector(old[i], old[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                           21, 6, 22, 7, 23);
      now[2 * i + 1] = __builtin_shufflevector(old[i], old[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12,
                                               28, 13, 29, 14, 30, 15, 31);
    }
  }
  std::memcpy(&to->bits, lines[0], sizeof lines[0]);
}

// Packs a tile at the edge of the matrix.
void pack_edge(const ConstMatrixView& from, std::int64_t row, std::int64_t column, Bf16* to) {
  const auto* const numbers = static_cast<const Bf16*>(from.data);
  for (std::int64_t k = 0; k < kStepK; ++k) {
    for (std::int64_t j = 0; j < kTileRows; ++j) {
      const bool is_there = row + k < from.rows && column + j < from.columns;
      to[k / 2 * 32 + 2 * j + k % 2] =
          is_there ? numbers[(row + k) * from.row_stride() + (column + j) * from.column_stride()]
                   : Bf16{};
    }
  }
}

void pack_tile(const ConstMatrixView& from, std::int64_t row, std::int64_t column, Bf16* to) {
  if (row + kStepK > from.rows || column + kTileRows > from.columns) {
    return pack_edge(from, row, column, to);
  }
  const Bf16* const numbers =
      static_cast<const Bf16*>(from.data) + row * from.row_stride() + column * from.column_stride();
  if (!from.is_transposed) return pack_rows(numbers, from.stride, to);
  pack_columns(numbers, from.stride, to);
}

bool request_amx() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-tile") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bf16") &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool has_amx() {
  static const bool found = request_amx();
  return found;
}

void ArenaDeleter::operator()(void* memory) const { std::free(memory); }

Arena make_arena(std::int64_t count) {
  constexpr std::size_t kPage = std::size_t{2} << 20U;
  const auto bytes = static_cast<std::size_t>(count) * sizeof(Bf16);
  const std::size_t pages = (bytes / kPage + 1) * kPage;
  void* const memory = std::aligned_alloc(kPage, pages);
  if (memory == nullptr) throw std::bad_alloc();
  madvise(memory, pages, MADV_HUGEPAGE);  // optional: small pages work too
  return Arena(static_cast<Bf16*>(memory));
}

// In the memory order of the matrix, so that it is read sequentially.
void pack_tiles(const ConstMatrixView& weights, Bf16* to) {
  const std::int64_t steps = divide_up(weights.rows, kStepK);
  const std::int64_t panels = divide_up(weights.columns, kPanelN);
  const bool is_by_rows = !weights.is_transposed;
  for (std::int64_t i = 0; i < steps * panels; ++i) {
    const std::int64_t step = is_by_rows ? i / panels : i % steps;
    const std::int64_t panel = is_by_rows ? i % panels : i / steps;
    Bf16* const tiles = to + (panel * steps + step) * kStepElements;
    const std::int64_t column = panel * kPanelN;
    pack_tile(weights, step * kStepK, column, tiles);
    pack_tile(weights, step * kStepK, column + kTileRows, tiles + kTileElements);
  }
}

// Even, since blocks of up to 16 rows take two at a time.
std::int64_t l2_panels(std::int64_t steps) {
  const std::int64_t bytes = 2 * steps * kStepElements;
  return std::clamp<std::int64_t>(kL2Bytes / bytes / 2 * 2, 2, kMaxL2Panels);
}

void multiply_tiles(const TilesGemm& gemm) { TilesMultiplier(gemm).run(); }

}  // namespace shiplap::kernels
