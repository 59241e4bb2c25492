// For processors without AMX.
#include "shiplap/base/error.h"
#include "shiplap/kernels/tiles_internal.h"

namespace shiplap::kernels {
namespace {

constexpr const char* kNoAmx = "has_amx() is checked before";

}  // namespace

bool has_amx() { return false; }
void ArenaDeleter::operator()(void*) const {}
Arena make_arena(std::int64_t) { throw InternalError(kNoAmx); }
void pack_tiles(const ConstMatrixView&, Bf16*) { throw InternalError(kNoAmx); }
std::int64_t l2_panels(std::int64_t) { throw InternalError(kNoAmx); }
void multiply_tiles(const TilesGemm&) { throw InternalError(kNoAmx); }

}  // namespace shiplap::kernels
