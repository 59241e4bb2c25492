// `add`, `cast` and `scale`: what they write is the sum of what they read; and `zero`.
//
// Dimensions are matched by name. A dimension of a source may be one of the part of what is written
// (the same coordinate) or of its sum (that coordinate is that contribution). If it is neither, it
// is summed over, and must be there whole, with one coefficient.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "shiplap/check/kernel_check_internal.h"

namespace shiplap::check {
namespace {

constexpr const char* kLeaves = "it leaves the contributions that it reads";

// Nothing if it does not fit into 64 bits.
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
  if (contracts_.statements_.masks_out(tensor(write), box(write))) return;  // nothing is stated
  fail("D755", fmt::format("`zero` claims to write `{}`", shown(write)),
       "it leaves a sum of nothing", "write `sum none`");
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
  const Source* other = nullptr;  // besides what is written itself
  for (const Source& source : sources_) {
    if (is_nothing(source) || !belongs(source, write)) continue;
    check_addend(source, write);
    if (source.tensor != write.value.tensor) {
      if (other != nullptr) {
        fail("D755",
             fmt::format("`{}` makes `{}` of `{}` and `{}`", kernel_, shown(write),
                         shown(*other->accesses.front()), shown(*source.accesses.front())),
             "they are contributions to different sums", "add those of one tensor and layer");
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
  const Boxes claimed = same_masks ? Boxes{stated} : statements.left_by_mask(out, stated);
  Boxes unread = difference(claimed, computed);
  Boxes unsaid = difference(computed, claimed);
  if (same_masks) {
    const auto masked = [&](const Box& points) { return statements.masks_out(out, points); };
    std::erase_if(unread, masked);
    std::erase_if(unsaid, masked);
  }
  if (unread.empty() && unsaid.empty()) return;
  const bool more = !unread.empty();
  const std::string points = shown(out, more ? unread.front() : unsaid.front());
  fail("D755",
       more ? fmt::format("`{}` claims {} of `{}`, which it does not read", kernel_, points,
                          shown(write))
            : fmt::format("`{}` reads {} of `{}` as well, and does not state it", kernel_, points,
                          shown(write)),
       kLeaves, more ? "read more, or state less" : "read less, or state all that is in the sum");
}

bool KernelCheck::is_nothing(const Source& source) {
  return std::ranges::all_of(source.accesses, [](const plan::flat::Access* access) {
    return access->value.zero || access->region.count == 0;
  });
}

// Several layers may be done at once, each for itself. Of two tensors the one with more instances
// may have them in front, as activations have one more than layers.
bool KernelCheck::belongs(const Source& source, const plan::flat::Access& write) const {
  const std::int64_t read = tensor(source.tensor).instances;
  const std::int64_t written = tensor(write).instances;
  if (read == 0 || written == 0) return true;
  const std::int64_t ahead = write.value.instance - source.instance;
  return std::min<std::int64_t>(0, written - read) <= ahead &&
         ahead <= std::max<std::int64_t>(0, written - read);
}

// What is read is in something that is written.
void KernelCheck::check_addends_used() const {
  for (const Source& source : sources_) {
    const auto uses = [&](const plan::flat::Access* write) { return belongs(source, *write); };
    if (is_nothing(source) || writes_.empty() || std::ranges::any_of(writes_, uses)) continue;
    fail("D752",
         fmt::format("`{}` makes `{}` of `{}`", kernel_, shown(*writes_.front()),
                     shown(*source.accesses.front())),
         "it is another layer's", "read the one that is written");
  }
}

void KernelCheck::check_addend(const Source& source, const plan::flat::Access& write) {
  const plan::Tensor& from = tensor(source.tensor);
  const plan::Tensor& out = tensor(write);
  const plan::flat::Access& read = *source.accesses.front();
  if (from.has_versions() && out.has_versions() && source.is_new != write.value.is_new) {
    fail("D755", fmt::format("`{}` makes `{}` of `{}`", kernel_, shown(write), shown(read)),
         "only `update` makes a new version", "let the kernel be `update`");
  }
  const std::vector<int>& place = contracts_.map(source.tensor, write.value.tensor).place;
  for (std::size_t k = from.part.size(); k < place.size(); ++k) {
    if (place[k] < 0 || place[k] >= static_cast<int>(out.part.size())) continue;
    fail("D755",
         fmt::format("`{}` takes the sum `{}` apart, by {}", kernel_, shown(read),
                     from.dimension(plan::DimensionId(k)).name),
         fmt::format("what is summed over {} no longer has its terms",
                     from.dimension(plan::DimensionId(k)).name),
         "keep the terms, or keep the sum");
  }
  for (std::size_t k = 0; k < out.sum.size(); ++k) {
    const int there = static_cast<int>(out.part.size() + k);
    if (std::ranges::find(place, there) != place.end()) continue;
    fail("D755",
         fmt::format("`{}` makes `{}`, a sum over {}, of `{}`, which has none", kernel_,
                     shown(write), out.sum[k].name, shown(read)),
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
  // A box of the source.
  const auto joined = [&](const Box& shared, const Box& along) {
    Box points;
    std::size_t s = 0;
    std::size_t a = 0;
    for (const int there : map.place) points.push_back(there < 0 ? along[a++] : shared[s++]);
    return points;
  };
  // One of what is written; dimensions of its part that the source does not have are as stated.
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
      return statements.masks_out(from, joined(shared, rest));
    };
    const auto differs = [&](const auto& piece) {
      return piece.second.ratio != along.front().second.ratio;
    };
    if (!std::ranges::all_of(missing, masked) || std::ranges::any_of(along, differs)) {
      fail("D740",
           fmt::format("`{}` makes `{}` of a part of the sum `{}`", kernel_, shown(write),
                       shown(*source.accesses.front())),
           "what is no sum any more must have been a whole one", "reduce it first");
    }
    Coefficient coefficient = along.front().second;
    coefficient.repeated =
        std::ranges::any_of(along, [](const auto& piece) { return piece.second.repeated; });
    const Box points = joined(shared, all);
    Piecewise<Coefficient> here;  // several terms of what is summed over are one point
    for (const Box& left : map.same_mask ? Boxes{points} : statements.left_by_mask(from, points)) {
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
    if (contracts_.statements_.masks_out(out, points)) continue;
    if (coefficient.repeated) {
      fail("D742",
           fmt::format("`{}` adds {} of `{}` more than once", kernel_, shown(out, points),
                       shown(write)),
           "several of its operands have it",
           out.sum.empty() ? "a sum of different tensors needs a kernel of another name"
                           : "add each contribution once");
    }
    fail(
        "D745",
        fmt::format("`{}` changes the scale of `{}` from {}/{} to {}/{}", kernel_, shown(write),
                    coefficient.ratio.numerator(), coefficient.ratio.denominator(), due.numerator(),
                    due.denominator()),
        kernel_ == "scale" ? "it multiplies all that it reads by one number"
                           : "only `scale` does that",
        kernel_ == "scale" ? "bring its operands to one scale first" : "let the kernel be `scale`");
  }
}

}  // namespace shiplap::check
