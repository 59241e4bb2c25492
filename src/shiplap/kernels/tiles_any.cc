// For processors without tiles, or of which we know nothing more.
#include "shiplap/base/error.h"
#include "shiplap/kernels/tiles_internal.h"

namespace shiplap::kernels {
namespace {

constexpr const char* kPromise = "nobody asks for tiles where there are none";

}  // namespace

bool has_tiles() { return false; }
void Released::operator()(void*) const {}
Arena make_arena(std::int64_t) { throw InternalError(kPromise); }
void pack_tiles(const ConstMatrixView&, Bf16*) { throw InternalError(kPromise); }
std::int64_t near_panels(std::int64_t) { throw InternalError(kPromise); }
void multiply_tiles(const TilesProduct&) { throw InternalError(kPromise); }

}  // namespace shiplap::kernels
