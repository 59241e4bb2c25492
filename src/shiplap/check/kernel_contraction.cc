// Contractions in the sense of einsum: every kernel that is neither linear nor opaque.
//
// A point of the output (coordinates of its part and of its sum) is computed if every operand was
// read at all points that agree with it in the shared dimensions, over the whole extent of the
// dimensions that the output does not have. So a GEMM over a sharded K is a partial sum, and a
// gradient has exactly the samples that were read. The output must state what is computed, no more
// (unread, D755) and no less (unstated, D755). Points that the mask of a tensor excludes do not
// count.
#include <fmt/format.h>

#include <algorithm>

#include "shiplap/check/kernel_check_internal.h"

namespace shiplap::check {
namespace {

BoxSide whole(const plan::Dimension& dimension) { return {IndexSet::range(0, dimension.size)}; }

}  // namespace

void KernelCheck::check_contraction(const plan::flat::Access& write) {
  const plan::Tensor& out = tensor(write);
  for (const Source& source : sources_) check_read_once(source, write.value.tensor);
  check_shapes(write.value.tensor);
  if (write.region.count == 0) return;
  const Box stated = box(write);
  const Boxes computed = contracted(write, stated);
  const auto masked = [&](const Box& points) {
    return contracts_.statements_.is_masked_out(out, points);
  };
  Boxes unread = difference({stated}, computed);
  std::erase_if(unread, masked);
  if (!unread.empty()) throw_unread(write, stated, unread);
  Boxes unstated = difference(computed, {stated});
  std::erase_if(unstated, masked);
  if (unstated.empty()) return;
  Box more = unstated.front();
  for (std::size_t k = 0; k < out.part.size(); ++k) more[k] = whole(out.part[k]);
  throw_violation("D755",
                  fmt::format("`{}` also computes {} of `{}`, but does not state it", kernel_,
                              format_points(out, more), format_access(write)),
                  "a sum has all contributions that the computation reads",
                  "read less, or state all that is in the sum");
}

Boxes KernelCheck::contracted(const plan::flat::Access& write, const Box& stated) {
  const plan::Tensor& out = tensor(write);
  Box cells = stated;
  for (std::size_t k = 0; k < out.sum.size(); ++k) cells[out.part.size() + k] = whole(out.sum[k]);
  std::vector<bool> read(out.dimensions());
  Boxes computed{std::move(cells)};
  for (const Source& source : sources_) {
    const std::vector<int>& place = contracts_.map(source.tensor, write.value.tensor).place;
    for (const int there : place) {
      if (there >= 0) read[there] = true;
    }
    std::vector<std::size_t> shared;  // places in what is written
    for (std::size_t k = 0; k < tensor(source.tensor).part.size(); ++k) {
      if (place[k] >= 0) shared.push_back(static_cast<std::size_t>(place[k]));
    }
    const Box all = whole_along(source, write.value.tensor, false);
    Boxes next;
    for (const auto& [at, along] : fibers(source, write.value.tensor, false)) {
      Boxes there;
      for (const auto& piece : along) there.push_back(piece.first);
      if (!difference({all}, there).empty()) continue;
      for (const Box& before : computed) {
        Box both = before;
        for (std::size_t k = 0; k < shared.size(); ++k) {
          narrow(both[shared[k]], at[k], out.dimension(plan::DimensionId(shared[k])).size);
        }
        if (!empty(both)) next.push_back(std::move(both));
      }
    }
    computed = std::move(next);
  }
  for (Box& points : computed) {
    for (std::size_t k = out.part.size(); k < points.size(); ++k) {
      if (read[k]) continue;
      // `sum none`: the output must be empty, unless all of it is assumed.
      const bool nothing = stated[k].set.empty() && !sources_.empty();
      points[k] = nothing ? whole(out.sum[k - out.part.size()]) : stated[k];
    }
  }
  std::erase_if(computed, [](const Box& points) { return empty(points); });
  return computed;
}

void KernelCheck::throw_unread(const plan::flat::Access& write, const Box& stated,
                               const Boxes& unread) {
  const plan::Tensor& out = tensor(write);
  constexpr const char* kWhy = "each output coordinate needs the operands at that coordinate";
  constexpr const char* kHelp = "read more, or state less";
  for (const Source& source : sources_) {
    const plan::Tensor& from = tensor(source.tensor);
    const std::vector<int>& place = contracts_.map(source.tensor, write.value.tensor).place;
    for (std::size_t k = 0; k < from.part.size(); ++k) {
      IndexSet have;
      for (const plan::flat::Access* access : source.accesses) {
        have = have.united(box(*access)[k].set);
      }
      const IndexSet needed = place[k] < 0 ? whole(from.part[k]).set : stated[place[k]].set;
      if (have.includes(needed)) continue;
      throw_violation(
          "D755",
          fmt::format("`{}` needs {} {} of `{}`, which this computation does not read",
                      format_access(write), from.part[k].name, to_string(needed.without(have)),
                      format_access(*source.accesses.front())),
          kWhy, kHelp);
    }
  }
  throw_violation("D755",
                  fmt::format("`{}` has {}, for which this computation does not read all operands",
                              format_access(write), format_points(out, unread.front())),
                  kWhy, kHelp);
}

void KernelCheck::check_complete(const plan::flat::Access& read) {
  const plan::Tensor& of = tensor(read);
  if (of.sum.empty() || read.region.count == 0) return;
  const Box stated = box(read);
  Box all = stated;
  for (std::size_t k = 0; k < of.sum.size(); ++k) all[of.part.size() + k] = whole(of.sum[k]);
  if (stated == all) return;
  const Boxes missing = difference({all}, {stated});
  const auto masked = [&](const Box& points) {
    return contracts_.statements_.is_masked_out(of, points);
  };
  if (std::ranges::all_of(missing, masked)) return;
  throw_violation(
      "D740", fmt::format("`{}` reads a part of the sum `{}`", kernel_, format_access(read)),
      "only `zero`, `add`, `scale` and `cast` may read an incomplete sum", "reduce it first");
}

// A coordinate of a summed dimension that is read twice would count twice.
void KernelCheck::check_read_once(const Source& source, plan::TensorId to) {
  const plan::Tensor& from = tensor(source.tensor);
  const plan::Tensor& out = tensor(to);
  const std::vector<int>& place = contracts_.map(source.tensor, to).place;
  const auto is_summed = [&](std::size_t k) {
    return place[k] < 0 || place[k] >= static_cast<int>(out.part.size());
  };
  std::size_t summed = 0;
  while (summed < from.part.size() && !is_summed(summed)) ++summed;
  if (summed == from.part.size()) return;
  const auto throw_twice = [&](const plan::flat::Access& access, const Box& twice) {
    throw_violation(
        "D742",
        fmt::format("`{}` reads {} of `{}` twice", kernel_, format_points(from, twice),
                    format_access(access)),
        fmt::format("it sums over {}, so that would count twice", from.part[summed].name),
        "read it once");
  };
  Boxes before;
  for (const plan::flat::Access* access : source.accesses) {
    Box points = box(*access);
    points.resize(from.part.size());
    if (empty(points)) continue;
    for (std::size_t k = summed; k < from.part.size(); ++k) {
      if (!is_summed(k)) continue;
      if (has_duplicates(access->value, k, points[k].set)) throw_twice(*access, points);
    }
    for (const Box& other : before) {
      if (!disjoint(other, points)) throw_twice(*access, intersection(other, points));
    }
    before.push_back(std::move(points));
  }
}

// Operands that are summed over a dimension must have the same coordinates in it.
void KernelCheck::check_shapes(plan::TensorId to) {
  const plan::Tensor& out = tensor(to);
  for (std::size_t k = 0; k < out.sum.size(); ++k) {
    const plan::flat::Access* first = nullptr;
    BoxSide of_first;
    for (const Source& source : sources_) {
      const std::vector<int>& place = contracts_.map(source.tensor, to).place;
      const auto part =
          place.begin() + static_cast<std::ptrdiff_t>(tensor(source.tensor).part.size());
      const auto found = std::find(place.begin(), part, static_cast<int>(out.part.size() + k));
      if (found == part) continue;
      BoxSide here;
      for (const plan::flat::Access* access : source.accesses) {
        // The shape is also checked for empty regions.
        const plan::flat::Access one{
            .kind = access->kind, .region = {.count = 1}, .value = access->value};
        const BoxSide side = box(one)[found - place.begin()];
        if (!here.set.empty() && here.slope != side.slope) throw Asymmetric();
        here = {here.set.united(side.set), side.slope};
      }
      if (first == nullptr) {
        first = source.accesses.front();
        of_first = std::move(here);
        continue;
      }
      if (here == of_first) continue;
      if (here.slope != of_first.slope) throw Asymmetric();
      throw_violation("D755",
                      fmt::format("`{}` reads {} {} of `{}`, but {} of `{}`", kernel_,
                                  out.sum[k].name, to_string(of_first.set), format_access(*first),
                                  to_string(here.set), format_access(*source.accesses.front())),
                      fmt::format("it sums over {}, so both must have the same", out.sum[k].name),
                      "read the same of both");
    }
  }
}

}  // namespace shiplap::check
