#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "shiplap/base/error.h"
#include "shiplap/overlap/overlap.h"

namespace shiplap::overlap {
namespace {

using enum Type;

constexpr std::array kSupported{
    SupportedChoice{{none, Method::none, false}, "", "GEMM only"},
    SupportedChoice{{all_gather, Method::none, false}, "", "gathered, then multiplied"},
    SupportedChoice{{all_gather, Method::ring_exchange, false},
                    "CommOverlapP2PBase::split_overlap_ag",
                    "chunks are forwarded around a ring"},
    SupportedChoice{{all_gather, Method::ring_exchange, true},
                    "CommOverlapP2PBase::atomic_gemm_overlap_ag",
                    "the same in one GEMM call"},
    SupportedChoice{{reduce_scatter, Method::none, false}, "", "multiplied, then scattered"},
    SupportedChoice{{reduce_scatter, Method::bulk, false},
                    "CommOverlapBase::bulk_overlap",
                    "concurrent with an unrelated GEMM"},
    SupportedChoice{{reduce_scatter, Method::pipeline, false},
                    "CommOverlapBase::split_overlap_rs",
                    "one collective per chunk"},
    SupportedChoice{{reduce_scatter, Method::pipeline, true},
                    "CommOverlapBase::atomic_gemm_overlap_rs",
                    "the same in one GEMM call"},
    SupportedChoice{{reduce_scatter, Method::ring_exchange, false},
                    "CommOverlapP2PBase::split_overlap_rs",
                    "chunks are sent to their owners"},
    SupportedChoice{{reduce_scatter, Method::ring_exchange, true},
                    "CommOverlapP2PBase::atomic_gemm_overlap_rs",
                    "the same in one GEMM call"},
    SupportedChoice{{all_reduce, Method::none, false}, "", "multiplied, then summed"},
    SupportedChoice{{all_reduce, Method::pipeline, false}, "", "one collective per chunk"},
    SupportedChoice{{all_reduce, Method::pipeline, true}, "", "the same in one GEMM call"},
    SupportedChoice{{all_reduce, Method::ring_exchange, false}, "", "to owners, then to all"},
    SupportedChoice{{all_reduce, Method::ring_exchange, true}, "", "the same in one GEMM call"},
};

std::string why(const Choice& choice) {
  if (choice.type == none) return "there is no communication to overlap";
  if (choice.method == Method::none) {
    return "atomic tiles need communication that is concurrent with the GEMM";
  }
  if (choice.method == Method::bulk) {
    return choice.type == reduce_scatter
               ? "a bulk transfer is unrelated to the tiles of the GEMM"
               : fmt::format(
                     "{} with bulk overlap not supported: the GEMM depends on the "
                     "communicated matrix",
                     choice.type == all_gather ? "AllGather" : "AllReduce");
  }
  return "one collective per chunk does not gather rows in the order that the GEMM needs";
}

}  // namespace

std::span<const SupportedChoice> supported_choices() { return kSupported; }

std::string_view name(Type type) {
  constexpr std::array<std::string_view, 4> kNames{"none", "all_gather", "reduce_scatter",
                                                   "all_reduce"};
  return kNames[static_cast<std::size_t>(type)];
}

std::string_view name(Method method) {
  constexpr std::array<std::string_view, 4> kNames{"none", "bulk", "pipeline", "ring_exchange"};
  return kNames[static_cast<std::size_t>(method)];
}

std::string_view name(Scaling scaling) {
  constexpr std::array<std::string_view, 3> kNames{"none", "row", "blocks"};
  return kNames[static_cast<std::size_t>(scaling)];
}

std::int64_t row_bytes(const QuantFormat& format, DType type, std::int64_t columns) {
  switch (format.scaling) {
    case Scaling::none:
      return columns * bytes_of(type);
    case Scaling::row:
      return columns + 4;
    case Scaling::blocks:
      return columns + (columns + 31) / 32;
  }
  throw InternalError("unknown scaling");
}

std::string to_string(const Choice& choice) {
  return fmt::format("{}, {}{}", name(choice.type), name(choice.method),
                     choice.atomic ? ", atomic" : "");
}

void check_supported(const Choice& choice) {
  if (std::ranges::find(kSupported, choice, &SupportedChoice::choice) != kSupported.end()) return;
  std::string alternatives;
  for (const SupportedChoice& supported : kSupported) {
    if (supported.choice.type != choice.type || supported.choice.method == Method::none) continue;
    alternatives +=
        fmt::format("{}{}{}", alternatives.empty() ? "" : " | ", name(supported.choice.method),
                    supported.choice.atomic ? " atomic" : "");
  }
  throw InputError(Diagnostic{
      .code = "D800",
      .what = fmt::format("unsupported overlap: {}", to_string(choice)),
      .why = why(choice),
      .help = alternatives.empty() ? "choose a type: all_gather | reduce_scatter | all_reduce"
                                   : fmt::format("for {}: {}", name(choice.type), alternatives)});
}

}  // namespace shiplap::overlap
