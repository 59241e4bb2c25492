// The linear kernels `add`, `cast` and `scale`, which write the sum of their operands; and `zero`.
//
// A value is a linear combination of contributions. So the check computes, for each point of the
// output (coordinates of its part and of its sum), the coefficient with which the operands
// contribute to it, as a piecewise constant function on disjoint boxes. The output must state
// exactly the points with a coefficient (D755), each from one region (D742), at the stated scale
// (D745).
//
// Dimensions are matched by name. A dimension of an operand may be one of the output's part (the
// same coordinate) or of its sum (the coordinate is the contribution). A dimension that the output
// does not have is summed over: all its coordinates must be read, with one coefficient (D740).
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "shiplap/check/kernel_check_internal.h"

namespace shiplap::check {
namespace {

constexpr const char* kLeaves = "it writes exactly the contributions that it reads";

// None if the result needs more than 64 bits.
std::optional<plan::Ratio> sum_of(const plan::Ratio& a, const plan::Ratio& b) {
  std::int64_t left = 0;
  std::int64_t right = 0;
  std::int64_t numerator = 0;
  std::int64_t denominator = 0;
  if (__builtin_mul_overflow(a.numerator(), b.denominator(), &left) ||
      __builtin_mul_overflow(b.numerator(), a.denominator(), &right) ||
      __builtin_add_overflow(left, right, &numerator) ||
      __builtin_mul_overflow(a.denominator(), b.denominator(), &denominator)) {
    return std::nullopt;
  }
  return plan::Ratio(numerator, denominator);
}

}  // namespace

void KernelCheck::check_zero(const plan::flat::Access& write) const {
  if (write.value.zero || write.region.count == 0) return;
  if (contracts_.statements_.is_masked_out(tensor(write), box(write))) return;  // nothing is stated
  throw_violation("D755", fmt::format("`zero` states that it writes `{}`", format_access(write)),
                  "it writes an empty sum", "write `sum none`");
}

void KernelCheck::combine(Coefficient& there, const Coefficient& more) {
  const std::optional<plan::Ratio> sum = sum_of(there.ratio, more.ratio);
  constexpr std::int64_t kTooLarge = std::numeric_limits<std::int64_t>::max();
  there = {sum.value_or(plan::Ratio(kTooLarge, 1)), true};
}

void KernelCheck::check_addition(const plan::flat::Access& write) {
  const plan::Tensor& out = tensor(write);
  const Box stated = box(write);
  Piecewise<Coefficient> sum;
  bool same_masks = true;
  const Source* other = nullptr;  // an operand other than the output itself
  for (const Source& source : sources_) {
    if (is_empty(source) || !same_layer(source, write)) continue;
    check_addend(source, write);
    if (source.tensor != write.value.tensor) {
      if (other != nullptr) {
        throw_violation("D755",
                        fmt::format("`{}` makes `{}` of `{}` and `{}`", kernel_,
                                    format_access(write), format_access(*other->accesses.front()),
                                    format_access(*source.accesses.front())),
                        "they are contributions to different sums",
                        "add those of one tensor and layer");
      }
      other = &source;
    }
    same_masks = same_masks && contracts_.map(source.tensor, write.value.tensor).same_mask;
    if (write.region.count > 0) add(source, write, stated, sum);
  }
  if (write.region.count == 0) return;
  check_coefficients(write, sum);
  Statements& statements = contracts_.statements_;
  Boxes computed;
  for (const auto& piece : sum) computed.push_back(piece.first);
  const Boxes claimed = same_masks ? Boxes{stated} : statements.unmasked(out, stated);
  Boxes unread = difference(claimed, computed);
  Boxes unstated = difference(computed, claimed);
  if (same_masks) {
    const auto masked = [&](const Box& points) { return statements.is_masked_out(out, points); };
    std::erase_if(unread, masked);
    std::erase_if(unstated, masked);
  }
  if (unread.empty() && unstated.empty()) return;
  const bool more = !unread.empty();
  const std::string points = format_points(out, more ? unread.front() : unstated.front());
  throw_violation("D755",
                  more ? fmt::format("`{}` states {} of `{}`, which it does not read", kernel_,
                                     points, format_access(write))
                       : fmt::format("`{}` also reads {} of `{}`, but does not state it", kernel_,
                                     points, format_access(write)),
                  kLeaves,
                  more ? "read more, or state less" : "read less, or state all that is in the sum");
}

bool KernelCheck::is_empty(const Source& source) {
  return std::ranges::all_of(source.accesses, [](const plan::flat::Access* access) {
    return access->value.zero || access->region.count == 0;
  });
}

// One computation may process several layers, each separately. If one tensor has more instances,
// the extra ones may come first: there is one more activation than layers.
bool KernelCheck::same_layer(const Source& source, const plan::flat::Access& write) const {
  const std::int64_t read = tensor(source.tensor).instances;
  const std::int64_t written = tensor(write).instances;
  if (read == 0 || written == 0) return true;
  const std::int64_t ahead = write.value.instance - source.instance;
  return std::min<std::int64_t>(0, written - read) <= ahead &&
         ahead <= std::max<std::int64_t>(0, written - read);
}

// Every operand must contribute to some output.
void KernelCheck::check_addends_used() const {
  for (const Source& source : sources_) {
    const auto uses = [&](const plan::flat::Access* write) { return same_layer(source, *write); };
    if (is_empty(source) || writes_.empty() || std::ranges::any_of(writes_, uses)) continue;
    throw_violation("D752",
                    fmt::format("`{}` makes `{}` of `{}`", kernel_, format_access(*writes_.front()),
                                format_access(*source.accesses.front())),
                    "it belongs to another layer", "read the layer that is written");
  }
}

void KernelCheck::check_addend(const Source& source, const plan::flat::Access& write) {
  const plan::Tensor& from = tensor(source.tensor);
  const plan::Tensor& out = tensor(write);
  const plan::flat::Access& read = *source.accesses.front();
  if (from.has_versions() && out.has_versions() && source.is_new != write.value.is_new) {
    throw_violation(
        "D755",
        fmt::format("`{}` makes `{}` of `{}`", kernel_, format_access(write), format_access(read)),
        "only `update` makes a new version", "use the kernel `update`");
  }
  const std::vector<int>& place = contracts_.map(source.tensor, write.value.tensor).place;
  for (std::size_t k = from.part.size(); k < place.size(); ++k) {
    if (place[k] < 0 || place[k] >= static_cast<int>(out.part.size())) continue;
    throw_violation("D755",
                    fmt::format("`{}` splits the sum `{}` by {}", kernel_, format_access(read),
                                from.dimension(plan::DimensionId(k)).name),
                    fmt::format("a sum over {} no longer has its terms",
                                from.dimension(plan::DimensionId(k)).name),
                    "keep the terms separate, or keep the sum");
  }
  for (std::size_t k = 0; k < out.sum.size(); ++k) {
    const int there = static_cast<int>(out.part.size() + k);
    if (std::ranges::find(place, there) != place.end()) continue;
    throw_violation("D755",
                    fmt::format("`{}` makes `{}`, a sum over {}, of `{}`, which has none", kernel_,
                                format_access(write), out.sum[k].name, format_access(read)),
                    kLeaves, "read terms of this sum");
  }
}

void KernelCheck::add(const Source& source, const plan::flat::Access& write, const Box& stated,
                      Piecewise<Coefficient>& sum) {
  const plan::Tensor& from = tensor(source.tensor);
  const plan::Tensor& out = tensor(write);
  const DimensionMap& map = contracts_.map(source.tensor, write.value.tensor);
  Statements& statements = contracts_.statements_;
  const Box all = whole_along(source, write.value.tensor, true);
  // Returns a box of the source.
  const auto joined = [&](const Box& shared, const Box& along) {
    Box points;
    std::size_t s = 0;
    std::size_t a = 0;
    for (const int there : map.place) points.push_back(there < 0 ? along[a++] : shared[s++]);
    return points;
  };
  // Returns a box of the output; dimensions of its part that the source does not have are as
  // stated.
  const auto projected = [&](const Box& points) {
    Box result = stated;
    for (std::size_t k = 0; k < map.place.size(); ++k) {
      if (map.place[k] < 0) continue;
      const auto there = static_cast<std::size_t>(map.place[k]);
      if (there < out.part.size()) {
        narrow(result[there], points[k], out.part[there].size);
      } else {
        result[there] = points[k];
      }
    }
    return result;
  };
  for (const auto& [shared, along] : fibers(source, write.value.tensor, true)) {
    if (empty(projected(joined(shared, all)))) continue;
    Boxes there;
    for (const auto& piece : along) there.push_back(piece.first);
    const Boxes missing = difference({all}, there);
    const auto masked = [&](const Box& rest) {
      return statements.is_masked_out(from, joined(shared, rest));
    };
    const auto differs = [&](const auto& piece) {
      return piece.second.ratio != along.front().second.ratio;
    };
    if (!std::ranges::all_of(missing, masked) || std::ranges::any_of(along, differs)) {
      throw_violation("D740",
                      fmt::format("`{}` makes `{}` of a part of the sum `{}`", kernel_,
                                  format_access(write), format_access(*source.accesses.front())),
                      "only a complete sum can be used as a plain value", "reduce it first");
    }
    Coefficient coefficient = along.front().second;
    coefficient.repeated =
        std::ranges::any_of(along, [](const auto& piece) { return piece.second.repeated; });
    const Box points = joined(shared, all);
    Piecewise<Coefficient> here;  // terms of a dimension that is summed over fall on one point
    for (const Box& left : map.same_mask ? Boxes{points} : statements.unmasked(from, points)) {
      const Box point = projected(left);
      if (!empty(point)) overlay(here, point, coefficient, [](auto&, const auto&) {});
    }
    for (const auto& [point, once] : here) overlay(sum, point, once, combine);
  }
}

void KernelCheck::check_coefficients(const plan::flat::Access& write,
                                     const Piecewise<Coefficient>& sum) const {
  const plan::Tensor& out = tensor(write);
  for (const auto& [points, coefficient] : sum) {
    const plan::Ratio& due = kernel_ == "scale" ? sum.front().second.ratio : write.value.scale;
    if (!coefficient.repeated && coefficient.ratio == due) continue;
    if (contracts_.statements_.is_masked_out(out, points)) continue;
    if (coefficient.repeated) {
      throw_violation("D742",
                      fmt::format("`{}` adds {} of `{}` more than once", kernel_,
                                  format_points(out, points), format_access(write)),
                      "several of its operands contain it",
                      out.sum.empty() ? "use a kernel with another name to sum different tensors"
                                      : "add each contribution once");
    }
    throw_violation(
        "D745",
        fmt::format("`{}` changes the scale of `{}` from {} to {}", kernel_, format_access(write),
                    plan::format_ratio(coefficient.ratio), plan::format_ratio(due)),
        kernel_ == "scale" ? "it multiplies all its operands by one number"
                           : "only `scale` does that",
        kernel_ == "scale" ? "bring its operands to one scale first" : "use the kernel `scale`");
  }
}

}  // namespace shiplap::check
