#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "shiplap/base/error.h"
#include "shiplap/overlap/overlap.h"

namespace shiplap::overlap {
namespace {

using enum Type;

constexpr std::array kLegal{
    Legal{{none, Method::none, false}, "", "the product alone"},
    Legal{{all_gather, Method::none, false}, "", "gathered, then multiplied"},
    Legal{{all_gather, Method::ring_exchange, false},
          "CommOverlapP2PBase::split_overlap_ag",
          "chunks go round a ring"},
    Legal{{all_gather, Method::ring_exchange, true},
          "CommOverlapP2PBase::atomic_gemm_overlap_ag",
          "the same in one launch"},
    Legal{{reduce_scatter, Method::none, false}, "", "multiplied, then scattered"},
    Legal{{reduce_scatter, Method::bulk, false},
          "CommOverlapBase::bulk_overlap",
          "beside an unrelated product"},
    Legal{{reduce_scatter, Method::pipeline, false},
          "CommOverlapBase::split_overlap_rs",
          "a collective for each chunk"},
    Legal{{reduce_scatter, Method::pipeline, true},
          "CommOverlapBase::atomic_gemm_overlap_rs",
          "the same in one launch"},
    Legal{{reduce_scatter, Method::ring_exchange, false},
          "CommOverlapP2PBase::split_overlap_rs",
          "chunks go to their owners"},
    Legal{{reduce_scatter, Method::ring_exchange, true},
          "CommOverlapP2PBase::atomic_gemm_overlap_rs",
          "the same in one launch"},
    Legal{{all_reduce, Method::none, false}, "", "multiplied, then summed"},
    Legal{{all_reduce, Method::pipeline, false}, "", "a collective for each chunk"},
    Legal{{all_reduce, Method::pipeline, true}, "", "the same in one launch"},
    Legal{{all_reduce, Method::ring_exchange, false}, "", "to owners, then to all"},
    Legal{{all_reduce, Method::ring_exchange, true}, "", "the same in one launch"},
};

std::string why(const Choice& choice) {
  if (choice.type == none) return "without communication there is nothing to hide";
  if (choice.method == Method::none) {
    return "atomic tiles are for communication that goes on beside the product";
  }
  if (choice.method == Method::bulk) {
    return choice.type == reduce_scatter
               ? "a bulk transfer has nothing to do with the product's tiles"
               : fmt::format(
                     "{} with bulk overlap not supported: the product needs what is "
                     "gathered, or makes what is summed",
                     choice.type == all_gather ? "AllGather" : "AllReduce");
  }
  return "a collective for each chunk gathers no rows in the order in which the product needs them";
}

}  // namespace

std::span<const Legal> legal_choices() { return kLegal; }

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

std::int64_t row_bytes(const Form& form, DType type, std::int64_t columns) {
  switch (form.scaling) {
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

void demand_legal(const Choice& choice) {
  if (std::ranges::find(kLegal, choice, &Legal::choice) != kLegal.end()) return;
  std::string there_is;
  for (const Legal& legal : kLegal) {
    if (legal.choice.type != choice.type || legal.choice.method == Method::none) continue;
    there_is += fmt::format("{}{}{}", there_is.empty() ? "" : " | ", name(legal.choice.method),
                            legal.choice.atomic ? " atomic" : "");
  }
  throw InputError(Diagnostic{
      .code = "D800",
      .what = fmt::format("there is no overlap {}", to_string(choice)),
      .why = why(choice),
      .help = there_is.empty() ? "choose a type: all_gather | reduce_scatter | all_reduce"
                               : fmt::format("for {}: {}", name(choice.type), there_is)});
}

}  // namespace shiplap::overlap
