// The tiles of AMX, as Linux gives them to a process on x86.
//
// Eight tiles are all there are: four hold sums, the others what is multiplied. Blocks of up to 32
// rows have two tiles of rows and two of columns, so that each is used twice for every load. Blocks
// of up to 16 rows have one of rows and four of columns: with four sums under way, none waits for
// the one before it. The tiles of the last rows of a product are as high as there are rows, so that
// nothing beyond them is read.
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
#include "shiplap/kernels/lanes_internal.h"
#include "shiplap/kernels/rows_internal.h"
#include "shiplap/kernels/tiles_internal.h"

namespace shiplap::kernels {
namespace {

constexpr std::int64_t kTileNumbers = kStepNumbers / 2;
constexpr std::int64_t kLine = 64;
constexpr std::int64_t kBlockRows = 2 * kTileRows;
// Rows of one block in turn are multiplied by weights of about this many bytes, which stay in the
// second level of the cache until the last block has used them.
constexpr std::int64_t kNearBytes = 256 << 10;
// So many steps of the rows of a block stay in the first level of the cache.
constexpr std::int64_t kNearSteps = 16;
constexpr std::int64_t kMostNearPanels = 16;
// With fewer blocks of rows, the weights come no faster if they are asked for earlier.
constexpr std::int64_t kFetchingBlocks = 2;

// The sizes of the tiles, as LDTILECFG reads them.
struct alignas(64) TileSizes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::array<std::uint8_t, 14> reserved{};
  std::array<std::uint16_t, 16> row_bytes{};
  std::array<std::uint8_t, 16> rows{};
};
static_assert(sizeof(TileSizes) == 64);

enum class BlockKind : std::uint8_t { two_by_two, one_by_four };

// Tiles 0 to 3 are sums. Two by two: 4 and 5 are rows of a, 6 and 7 weights. One by four: 4 is rows
// of a, 5 to 7 are weights.
constexpr TileSizes sizes_of(BlockKind kind, std::uint8_t last_rows) {
  TileSizes sizes;
  for (std::size_t i = 0; i < 8; ++i) {
    sizes.row_bytes[i] = kLine;
    sizes.rows[i] = kTileRows;
  }
  if (kind == BlockKind::two_by_two) {
    for (const std::size_t i : {2U, 3U, 5U}) sizes.rows[i] = last_rows;
  } else {
    for (const std::size_t i : {0U, 1U, 2U, 3U, 4U}) sizes.rows[i] = last_rows;
  }
  return sizes;
}

// By kind and number of rows of the last tile.
using AllSizes = std::array<std::array<TileSizes, kTileRows + 1>, 2>;
constexpr AllSizes all_sizes() {
  AllSizes all;
  for (std::uint8_t rows = 1; rows <= kTileRows; ++rows) {
    all[0][rows] = sizes_of(BlockKind::two_by_two, rows);
    all[1][rows] = sizes_of(BlockKind::one_by_four, rows);
  }
  return all;
}
constexpr AllSizes kSizes = all_sizes();

// The compiler knows of no tile. What it has to know is that memory is read and written.
void configure(const TileSizes& sizes) { asm volatile("ldtilecfg %0" ::"m"(sizes)); }
void release() { asm volatile("tilerelease"); }

template <int kTile>
[[gnu::always_inline]] inline void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
[[gnu::always_inline]] inline void load_tile(const void* from, std::int64_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(stride) : "memory");
}
// The same, without leaving it in the first level of the cache, where the rows of a block then stay
// from one panel to the next.
template <int kTile>
[[gnu::always_inline]] inline void stream_tile(const Bf16* from) {
  asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(kLine) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void store_tile(void* to, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(to), "r"(stride) : "memory");
}
template <int kSum, int kA, int kWeights>
[[gnu::always_inline]] inline void add_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kWeights));
}

// What to fetch into the second level of the cache while something else is computed.
struct Ahead {
  const std::byte* from = nullptr;
  const std::byte* end = nullptr;
  std::int64_t bytes_per_step = 0;
};

[[gnu::always_inline]] inline void fetch_some(Ahead& ahead) {
  const std::byte* const end = std::min(ahead.end, ahead.from + ahead.bytes_per_step);
  for (; ahead.from < end; ahead.from += kLine) __builtin_prefetch(ahead.from, 0, 2);
}

// Some steps of one block. Sums are 32 x 32 or 16 x 64.
struct Block {
  const Bf16* a = nullptr;
  std::int64_t stride_a = 0;  // in bytes
  std::int64_t steps = 0;
  const Bf16* weights = nullptr;
  std::int64_t panel = 0;  // numbers from one panel to the next
  float* sums = nullptr;
  bool adds = false;  // to the sums that are there
};

template <int kTile>
[[gnu::always_inline]] inline void begin_tile(const Block& block, const float* sums,
                                              std::int64_t stride) {
  if (block.adds) return load_tile<kTile>(sums, stride);
  clear_tile<kTile>();
}

void multiply_two_by_two(const Block& block, Ahead& ahead) {
  constexpr std::int64_t kStride = 2 * kLine;
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
    stream_tile<7>(weights + kTileNumbers);
    add_product<1, 4, 7>();
    load_tile<5>(a + below, block.stride_a);
    add_product<2, 5, 6>();
    add_product<3, 5, 7>();
    fetch_some(ahead);
    a += kStepDepth;
    weights += kStepNumbers;
  }
  store_tile<0>(block.sums, kStride);
  store_tile<1>(block.sums + 16, kStride);
  store_tile<2>(block.sums + kTileRows * 32, kStride);
  store_tile<3>(block.sums + kTileRows * 32 + 16, kStride);
}

// Two panels, or the last one alone.
template <bool kIsAlone>
void multiply_one_by_four(const Block& block, Ahead& ahead) {
  constexpr std::int64_t kStride = 4 * kLine;
  begin_tile<0>(block, block.sums, kStride);
  begin_tile<1>(block, block.sums + 16, kStride);
  if constexpr (!kIsAlone) {
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
    stream_tile<6>(left + kTileNumbers);
    add_product<1, 4, 6>();
    if constexpr (!kIsAlone) {
      stream_tile<7>(right);
      add_product<2, 4, 7>();
      stream_tile<5>(right + kTileNumbers);
      add_product<3, 4, 5>();
    }
    fetch_some(ahead);
    if constexpr (!kIsAlone) fetch_some(ahead);
    a += kStepDepth;
    left += kStepNumbers;
    right += kStepNumbers;
  }
  store_tile<0>(block.sums, kStride);
  store_tile<1>(block.sums + 16, kStride);
  if constexpr (kIsAlone) return;
  store_tile<2>(block.sums + 32, kStride);
  store_tile<3>(block.sums + 48, kStride);
}

// Whether nothing is left to do but to round.
bool only_rounds(const EpilogueStep& step) {
  return step.c.type == DType::bf16 && step.alpha == 1 && step.beta == 0 && step.bias == nullptr &&
         step.activation == Activation::none && step.before_activation.data == nullptr;
}

// As store() of lanes_internal.h, except that this instruction takes subnormals as zero; the sums
// of tiles are none.
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]]
void round_sums(const EpilogueStep& step) {
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

MatrixView part_of(MatrixView whole, std::int64_t row, std::int64_t column) {
  if (whole.data != nullptr) whole.data = whole.at(row, column);
  return whole;
}

class Multiplication {
 public:
  explicit Multiplication(const TilesProduct& product)
      : product_(product),
        panels_(divide_up(product.finish.columns, kPanelColumns)),
        panel_(product.steps * kStepNumbers),
        near_(near_panels(product.steps)),
        only_rounds_(shiplap::kernels::only_rounds(product.finish)) {}

  void run() {
    for (std::int64_t first = 0; first < panels_; first += near_) {
      if (product_.weights == nullptr) pack(first, std::min(panels_, first + near_));
      run_panels(first, std::min(panels_, first + near_));
    }
    release();
  }

 private:
  void pack(std::int64_t begin, std::int64_t end) {
    ConstMatrixView some = product_.unpacked;
    const std::int64_t column = begin * kPanelColumns;
    some.data = some.at(0, column);
    some.columns = std::min(some.columns, end * kPanelColumns) - column;
    pack_tiles(some, product_.near);
    near_begin_ = begin;
  }

  [[nodiscard]] const Bf16* weights_at(std::int64_t panel) const {
    if (product_.weights == nullptr) return product_.near + (panel - near_begin_) * panel_;
    return product_.weights + panel * panel_;
  }

  void run_panels(std::int64_t begin, std::int64_t end) {
    const std::int64_t rows = product_.finish.rows;
    ahead_ = ahead_of(end);
    for (std::int64_t row = 0; row < rows; row += kBlockRows) {
      const std::int64_t count = std::min(kBlockRows, rows - row);
      const bool is_low = count <= kTileRows;
      use(sizes_for(count));
      const std::int64_t width = is_low ? 2 : 1;
      for (std::int64_t step = 0; step < product_.steps; step += kNearSteps) {
        for (std::int64_t panel = begin; panel < end; panel += width) {
          run_block({.row = row,
                     .rows = count,
                     .panel = panel,
                     .panels = std::min(width, end - panel),
                     .step = step,
                     .steps = std::min(kNearSteps, product_.steps - step),
                     .sums = sums_.data() + (panel - begin) * kSumsOfPanel});
        }
      }
    }
  }

  static const TileSizes& sizes_for(std::int64_t rows) {
    const bool is_low = rows <= kTileRows;
    return kSizes[is_low ? 1 : 0][is_low ? rows : rows - kTileRows];
  }

  void use(const TileSizes& sizes) {
    if (&sizes == used_) return;
    configure(sizes);
    used_ = &sizes;
  }

  // Where a block is in the product.
  struct Place {
    std::int64_t row = 0;
    std::int64_t rows = 0;
    std::int64_t panel = 0;
    std::int64_t panels = 0;
    std::int64_t step = 0;
    std::int64_t steps = 0;
    float* sums = nullptr;
  };

  void run_block(const Place& at) {
    const Block block{.a = product_.a + at.row * product_.stride_a + at.step * kStepDepth,
                      .stride_a = 2 * product_.stride_a,
                      .steps = at.steps,
                      .weights = weights_at(at.panel) + at.step * kStepNumbers,
                      .panel = panel_,
                      .sums = at.sums,
                      .adds = at.step > 0};
    if (at.rows > kTileRows) {
      multiply_two_by_two(block, ahead_);
    } else if (at.panels == 2) {
      multiply_one_by_four<false>(block, ahead_);
    } else {
      multiply_one_by_four<true>(block, ahead_);
    }
    if (at.step + at.steps == product_.steps) finish(at);
  }

  void finish(const Place& at) const {
    const std::int64_t column = at.panel * kPanelColumns;
    EpilogueStep step = product_.finish;
    step.rows = at.rows;
    step.columns = std::min(at.panels * kPanelColumns, step.columns - column);
    step.sums = at.sums;
    step.stride_sums = (at.rows > kTileRows ? 1 : 2) * kPanelColumns;
    if (step.bias != nullptr) step.bias += column;
    step.before_activation = part_of(step.before_activation, at.row, column);
    step.c = part_of(step.c, at.row, column);
    only_rounds_ ? round_sums(step) : apply_epilogue(step);
  }

  // What comes after these panels, spread over the steps of all blocks.
  [[nodiscard]] Ahead ahead_of(std::int64_t end) const {
    const std::int64_t blocks = divide_up(product_.finish.rows, kBlockRows);
    if (blocks < kFetchingBlocks || product_.weights == nullptr) return {};
    const Bf16* const from =
        end < panels_ ? product_.weights + end * panel_ : product_.next_weights;
    if (from == nullptr) return {};
    const std::int64_t panels = std::min(near_, end < panels_ ? panels_ - end : panels_);
    const auto* const bytes = reinterpret_cast<const std::byte*>(from);
    return {.from = bytes,
            .end = bytes + 2 * panels * panel_,
            .bytes_per_step = divide_up(2 * kStepNumbers / kLine, blocks) * kLine};
  }

  static constexpr std::int64_t kSumsOfPanel = kBlockRows * kPanelColumns;
  alignas(kLine)
      std::array<float, kMostNearPanels * kSumsOfPanel> sums_;  // of the panels that are near
  const TilesProduct& product_;
  std::int64_t panels_;
  std::int64_t panel_;  // in numbers
  std::int64_t near_;   // in panels
  Ahead ahead_;
  bool only_rounds_;
  std::int64_t near_begin_ = 0;
  const TileSizes* used_ = nullptr;
};

// Sixteen columns of a step that lies by rows.
[[gnu::target("avx512f,avx512bw,avx512vl")]]
void pack_rows(const Bf16* from, std::int64_t stride, Bf16* to) {
  for (std::int64_t i = 0; i < kTileRows; ++i) {
    Halves even;
    Halves odd;
    std::memcpy(&even, from + 2 * i * stride, sizeof even);
    std::memcpy(&odd, from + (2 * i + 1) * stride, sizeof odd);
    const Words pairs =
        __builtin_convertvector(even, Words) | (__builtin_convertvector(odd, Words) << 16);
    std::memcpy(&to[i * 32].bits, &pairs, sizeof pairs);
  }
}

// Sixteen columns of a step that lies by columns: 16 x 16 pairs, transposed. Four times, as with
// cards, the first half of all pairs is shuffled into the second; this turns row 4 bits, column 4
// bits of a place into column, row.
[[gnu::target("avx512f,avx512bw,avx512vl")]]
void pack_columns(const Bf16* from, std::int64_t stride, Bf16* to) {
  Words lines[2][16];
  for (std::size_t i = 0; i < 16; ++i)
    std::memcpy(&lines[0][i], from + static_cast<std::int64_t>(i) * stride, sizeof(Words));
  for (std::size_t round = 0; round < 4; ++round) {
    const Words* const old = lines[round % 2];
    Words* const now = lines[(round + 1) % 2];
    for (std::size_t i = 0; i < 8; ++i) {
      now[2 * i] = __builtin_shufflevector(old[i], old[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                           21, 6, 22, 7, 23);
      now[2 * i + 1] = __builtin_shufflevector(old[i], old[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12,
                                               28, 13, 29, 14, 30, 15, 31);
    }
  }
  std::memcpy(&to->bits, lines[0], sizeof lines[0]);
}

// A tile that the matrix does not fill.
void pack_edge(const ConstMatrixView& from, std::int64_t depth, std::int64_t column, Bf16* to) {
  const auto* const numbers = static_cast<const Bf16*>(from.data);
  for (std::int64_t k = 0; k < kStepDepth; ++k) {
    for (std::int64_t j = 0; j < kTileRows; ++j) {
      const bool is_there = depth + k < from.rows && column + j < from.columns;
      to[k / 2 * 32 + 2 * j + k % 2] =
          is_there ? numbers[(depth + k) * from.down() + (column + j) * from.right()] : Bf16{};
    }
  }
}

void pack_tile(const ConstMatrixView& from, std::int64_t depth, std::int64_t column, Bf16* to) {
  if (depth + kStepDepth > from.rows || column + kTileRows > from.columns) {
    return pack_edge(from, depth, column, to);
  }
  const Bf16* const numbers =
      static_cast<const Bf16*>(from.data) + depth * from.down() + column * from.right();
  if (!from.is_transposed) return pack_rows(numbers, from.stride, to);
  pack_columns(numbers, from.stride, to);
}

bool ask_for_tiles() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-tile") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bf16") &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool has_tiles() {
  static const bool found = ask_for_tiles();
  return found;
}

void Released::operator()(void* memory) const { std::free(memory); }

Arena make_arena(std::int64_t count) {
  constexpr std::size_t kPage = std::size_t{2} << 20U;
  const auto bytes = static_cast<std::size_t>(count) * sizeof(Bf16);
  const std::size_t pages = (bytes / kPage + 1) * kPage;
  void* const memory = std::aligned_alloc(kPage, pages);
  if (memory == nullptr) throw std::bad_alloc();
  madvise(memory, pages, MADV_HUGEPAGE);  // where it is refused, small pages do
  return Arena(static_cast<Bf16*>(memory));
}

// In the order in which the matrix lies, so that it is read in one go.
void pack_tiles(const ConstMatrixView& weights, Bf16* to) {
  const std::int64_t steps = divide_up(weights.rows, kStepDepth);
  const std::int64_t panels = divide_up(weights.columns, kPanelColumns);
  const bool is_by_rows = !weights.is_transposed;
  for (std::int64_t i = 0; i < steps * panels; ++i) {
    const std::int64_t step = is_by_rows ? i / panels : i % steps;
    const std::int64_t panel = is_by_rows ? i % panels : i / steps;
    Bf16* const tiles = to + (panel * steps + step) * kStepNumbers;
    const std::int64_t column = panel * kPanelColumns;
    pack_tile(weights, step * kStepDepth, column, tiles);
    pack_tile(weights, step * kStepDepth, column + kTileRows, tiles + kTileNumbers);
  }
}

// An even number, since low blocks take two at a time.
std::int64_t near_panels(std::int64_t steps) {
  const std::int64_t bytes = 2 * steps * kStepNumbers;
  return std::clamp<std::int64_t>(kNearBytes / bytes / 2 * 2, 2, kMostNearPanels);
}

void multiply_tiles(const TilesProduct& product) { Multiplication(product).run(); }

}  // namespace shiplap::kernels
