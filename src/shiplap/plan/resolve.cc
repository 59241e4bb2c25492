#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/plan/resolve_internal.h"

namespace shiplap::plan {
namespace {

[[noreturn]] void throw_input_error(std::string code, std::string what, std::string why = "",
                                    std::string help = "") {
  throw InputError(Diagnostic{.code = std::move(code),
                              .what = std::move(what),
                              .why = std::move(why),
                              .help = std::move(help)});
}

flat::Slice slice(std::size_t first, std::size_t last) {
  return {static_cast<std::int32_t>(first), static_cast<std::int32_t>(last - first)};
}

}  // namespace

Resolver::Resolver(const Plan& plan, const Program& program, Rank rank, RankProgram& result,
                   std::int64_t max_entries)
    : plan_(plan),
      program_(program),
      result_(result),
      max_entries_(max_entries),
      axes_(plan.mesh.positions(rank)) {
  position_ = {.rank = rank.value, .axes = axes_, .locals = {}, .lists = plan.lists};
}

// Every operation may list millions of rows, so their total is limited.
void Resolver::limit(std::size_t more) const {
  const std::size_t entries = more + result_.runs.size() + result_.listed_rows.size() +
                              result_.accesses.size() + result_.numbers.size() +
                              result_.dependencies.size() + result_.given.size() +
                              result_.goal.size();
  if (entries > static_cast<std::size_t>(max_entries_)) {
    throw_input_error("D207", fmt::format("this rank has more than {} rows, runs and other entries",
                                          max_entries_));
  }
}

void Resolver::bind(std::int64_t value) {
  locals_.push_back(value);
  position_.locals = locals_;
}

void Resolver::unbind_to(std::size_t count) { locals_.resize(count); }

flat::Slice Resolver::numbers(std::span<const Expr> list) {
  const std::size_t first = result_.numbers.size();
  for (const Expr& expr : list) result_.numbers.push_back(number(expr));
  return slice(first, result_.numbers.size());
}

void Resolver::buffer(const Buffer& buffer) {
  const flat::Buffer flat{.rows = number(buffer.rows), .row_bytes = number(buffer.row_bytes)};
  std::int64_t bytes = 0;
  if (flat.rows < 0 || flat.row_bytes <= 0) {
    throw_input_error(
        "D208", fmt::format("`{}` has {} rows of {} bytes", buffer.name, flat.rows, flat.row_bytes),
        "a buffer needs at least 0 rows, and a row at least 1 byte");
  }
  if (__builtin_mul_overflow(flat.rows, flat.row_bytes, &bytes)) {
    throw_input_error("D208", fmt::format("`{}` has {} rows of {} bytes, which overflows 64 bits",
                                          buffer.name, flat.rows, flat.row_bytes));
  }
  if (flat.row_bytes % bytes_of(buffer.type) != 0) {
    throw_input_error(
        "D208",
        fmt::format("a row of `{}` is {} bytes, which is not a multiple of the element size",
                    buffer.name, flat.row_bytes),
        fmt::format("{} takes {} bytes", name(buffer.type), bytes_of(buffer.type)));
  }
  result_.buffers.push_back(flat);
}

// ---- regions

flat::Region Resolver::within(const Region& region, std::int64_t begin, std::int64_t count) const {
  const std::int64_t rows = result_.buffers[region.buffer].rows;
  if (begin < 0 || count < 0 || begin > rows || count > rows - begin) {
    const std::string& name = program_.buffers[region.buffer].name;
    throw_input_error("D201", fmt::format("{}[{} +{}] lies outside `{}`, which has {} rows", name,
                                          begin, count, name, rows));
  }
  return {.buffer = region.buffer, .begin = begin, .count = count};
}

flat::Region Resolver::region(const Region& region) {
  switch (region.kind) {
    case Region::Kind::whole:
      return {.buffer = region.buffer, .count = result_.buffers[region.buffer].rows};
    case Region::Kind::rows:
      return within(region, number(region.begin), number(region.count));
    case Region::Kind::cut:
      return cut(region);
    case Region::Kind::listed:
      return listed(region);
  }
  throw InternalError("unknown kind of region");
}

flat::Region Resolver::cut(const Region& region) {
  const std::vector<std::int64_t>& cuts = plan_.lists[region.list].values;
  const std::int64_t piece = number(region.begin);
  if (piece < 0 || piece >= std::ssize(cuts) - 1) {
    const std::string& name = plan_.lists[region.list].name;
    throw_input_error("D203",
                      fmt::format("there is no piece {} of list `{}`, which has {} entries", piece,
                                  name, cuts.size()),
                      "piece i goes from entry i to entry i+1");
  }
  const auto ends = std::span(cuts).subspan(piece, 2);
  std::int64_t count = 0;
  if (__builtin_sub_overflow(ends[1], ends[0], &count))
    throw_input_error("D203", "64-bit overflow in the size of a piece");
  return within(region, ends[0], count);
}

std::span<const std::int64_t> Resolver::entries(ListId list, const Expr& begin,
                                                const Expr& count) const {
  const List& from = plan_.lists[list];
  const std::int64_t first = number(begin);
  const std::int64_t size = number(count);
  const std::int64_t available = std::ssize(from.values);
  if (first < 0 || size < 0 || first > available || size > available - first) {
    throw_input_error("D203", fmt::format("{}[{} +{}] lies outside the list, which has {} entries",
                                          from.name, first, size, available));
  }
  return std::span(from.values).subspan(first, size);
}

flat::Region Resolver::listed(const Region& region) {
  const auto rows = entries(region.list, region.begin, region.count);
  for (const std::int64_t row : rows) within(region, row, 1);
  limit(rows.size());
  const auto first = static_cast<std::int32_t>(result_.listed_rows.size());
  result_.listed_rows.insert(result_.listed_rows.end(), rows.begin(), rows.end());
  return {.buffer = region.buffer, .count = std::ssize(rows), .listed = first};
}

// ---- values

std::int64_t Resolver::listed_run(const Run& run, const Dimension& dimension) {
  const auto coordinates = entries(run.list, run.begin, run.count);
  limit(coordinates.size());
  const std::size_t first = result_.runs.size();
  for (const std::int64_t coordinate : coordinates) {
    if (coordinate < 0 || coordinate >= dimension.size) {
      throw_input_error("D209", fmt::format("`{} {}` lies outside the dimension, which is 0 to {}",
                                            dimension.name, coordinate, dimension.size - 1));
    }
    if (result_.runs.size() > first &&
        result_.runs.back().begin + result_.runs.back().count == coordinate) {
      ++result_.runs.back().count;
    } else {
      result_.runs.push_back({.dimension = run.dimension, .begin = coordinate, .count = 1});
    }
  }
  // An empty run, because a dimension without runs is whole.
  if (coordinates.empty()) result_.runs.push_back({.dimension = run.dimension, .count = 0});
  return std::ssize(coordinates);
}

std::int64_t Resolver::run(const Run& run, const Tensor& tensor) {
  const Dimension& dimension = tensor.dimension(run.dimension);
  if (run.list.exists()) return listed_run(run, dimension);
  const flat::Run flat{.dimension = run.dimension,
                       .begin = number(run.begin),
                       .count = number(run.count),
                       .stride = number(run.stride)};
  std::int64_t last = 0;
  const bool sensible = flat.count >= 0 && flat.begin >= 0 && flat.stride >= 1;
  const bool overflows = sensible && (__builtin_mul_overflow(flat.count - 1, flat.stride, &last) ||
                                      __builtin_add_overflow(last, flat.begin, &last));
  if (!sensible || overflows || (flat.count > 0 && last >= dimension.size)) {
    throw_input_error(
        "D209",
        fmt::format("`{} {} +{}{}` lies outside the dimension, which is 0 to {}", dimension.name,
                    flat.begin, flat.count,
                    flat.stride == 1 ? "" : fmt::format(" by {}", flat.stride), dimension.size - 1),
        flat.stride < 1 ? "a stride is at least 1" : "");
  }
  result_.runs.push_back(flat);
  return flat.count;
}

// Adds whole runs for the unnamed dimensions in first .. last-1. Returns the number of their cells.
std::int64_t Resolver::whole_part(const Tensor& tensor, std::span<const Run> named,
                                  std::size_t first, std::size_t last) {
  std::int64_t cells = 1;
  for (std::size_t k = first; k < last; ++k) {
    const DimensionId id(k);
    if (std::ranges::find(named, id, &Run::dimension) != named.end()) continue;
    const std::int64_t size = tensor.dimension(id).size;
    result_.runs.push_back({.dimension = id, .begin = 0, .count = size});
    if (__builtin_mul_overflow(cells, size, &cells)) {
      throw_input_error("D210",
                        fmt::format("the number of cells of `{}` overflows 64 bits", tensor.name));
    }
  }
  return cells;
}

flat::Value Resolver::value(const Value& value, const flat::Region& region) {
  const Tensor& tensor = plan_.tensors[value.tensor];
  flat::Value flat{.tensor = value.tensor,
                   .is_new = value.is_new,
                   .zero = value.sum == Sum::none,
                   .instance = number(value.index),
                   .scale = value.scale};
  if (flat.instance < 0 || (flat.instance > 0 && flat.instance >= tensor.instances)) {
    throw_input_error("D209", fmt::format("there is no `{}[{}]`", tensor.name, flat.instance),
                      tensor.instances > 0 ? fmt::format("`{}` has instances 0 to {}", tensor.name,
                                                         tensor.instances - 1)
                                           : "");
  }
  const std::size_t first = result_.runs.size();
  const auto named_sum =
      std::ranges::find_if(value.runs, [&](const Run& r) { return tensor.in_sum(r.dimension); });
  std::int64_t cells = 1;
  std::int64_t set = 0;
  DimensionId last;
  for (auto it = value.runs.begin(); it != named_sum; ++it) {
    set = it->dimension == last ? set + run(*it, tensor) : run(*it, tensor);
    last = it->dimension;
    const auto next = it + 1;
    if (next != named_sum && next->dimension == last) continue;
    if (__builtin_mul_overflow(cells, set, &cells)) {
      throw_input_error("D210",
                        fmt::format("the number of cells of `{}` overflows 64 bits", tensor.name));
    }
  }
  if (__builtin_mul_overflow(cells, whole_part(tensor, value.runs, 0, tensor.part.size()),
                             &cells)) {
    throw_input_error("D210",
                      fmt::format("the number of cells of `{}` overflows 64 bits", tensor.name));
  }
  fits(tensor, cells, region);
  if (!flat.zero) {
    for (auto it = named_sum; it != value.runs.end(); ++it) run(*it, tensor);
    (void)whole_part(tensor, value.runs, tensor.part.size(), tensor.dimensions());
  }
  flat.runs = slice(first, result_.runs.size());
  return flat;
}

void Resolver::fits(const Tensor& tensor, std::int64_t cells, const flat::Region& region) const {
  const std::int64_t rows = region.count;
  const bool both_empty = cells == 0 && rows == 0;
  const bool whole = cells > 0 && rows > 0 && (cells % rows == 0 || rows % cells == 0);
  if (both_empty || whole) return;
  throw_input_error("D210",
                    fmt::format("{} cells of `{}` do not fit {} rows of `{}`", cells, tensor.name,
                                rows, program_.buffers[region.buffer].name),
                    "rows hold a whole number of cells each, or cells a whole number of rows");
}

flat::Work Resolver::work(const Work& work) const {
  return {.flop = static_cast<double>(number(work.flop)),
          .bytes = static_cast<double>(number(work.bytes)),
          .seconds = work.seconds * static_cast<double>(number(work.times))};
}

// ---- ranks

Rank Resolver::peer(const Peer& peer) const {
  std::int64_t where = number(peer.where);
  const Mesh& mesh = plan_.mesh;
  if (!peer.axis.exists()) {
    if (where >= 0 && where < mesh.ranks()) return Rank(static_cast<std::int32_t>(where));
    throw_input_error("D202", fmt::format("there is no rank {}", where),
                      fmt::format("the mesh has ranks 0 to {}", mesh.ranks() - 1));
  }
  const std::int64_t size = mesh.size(peer.axis);
  const std::int64_t here = axes_[peer.axis.index()];
  std::int64_t there = 0;
  if (__builtin_add_overflow(here, where, &there))
    throw_input_error("D203", "64-bit overflow in a shift");
  if (peer.wrap) there = ((there % size) + size) % size;
  if (there < 0 || there >= size) {
    const std::string& name = mesh.name(peer.axis);
    throw_input_error("D202",
                      fmt::format("{}{:+} from {}={} leaves the axis, which has {} positions", name,
                                  where, name, here, size),
                      "every peer must exist", "put the operation under `when`, or add `wrap`");
  }
  return mesh.moved(result_.rank, peer.axis, there);
}

RankSet Resolver::members(const Group& group) const {
  RankSet all = group.axes.empty() ? RankSet(Rank(std::int32_t{0}), {{.count = plan_.mesh.ranks()}})
                                   : along(plan_.mesh, group.axes, result_.rank);
  if (group.positions.empty()) return all;
  std::vector<Rank> listed;
  for (const Expr& expr : group.positions) {
    const std::int64_t position = number(expr);
    if (position < 0 || position >= all.size()) {
      throw_input_error(
          "D206",
          fmt::format("there is no position {} in a group of {} ranks", position, all.size()),
          "positions are counted from 0");
    }
    listed.push_back(all[position]);
  }
  std::vector<Rank> sorted = listed;
  std::ranges::sort(sorted);
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    throw_input_error("D206", fmt::format("rank {} is listed twice in its group", twice->value));
  }
  return RankSet(std::move(listed));
}

flat::GroupId Resolver::group(const Group& group) {
  if (const auto known = constant_groups_.find(&group); known != constant_groups_.end()) {
    return known->second;
  }
  flat::Group flat{.ranks = members(group), .channel = group.channel};
  if (flat.ranks.find(result_.rank) < 0) {
    throw_input_error("D206",
                      fmt::format("rank {} is not in the group it calls", result_.rank.value),
                      "only members of a group take part in its operations",
                      "put the operation under `when`, so that only members reach it");
  }
  const flat::GroupId id = intern(std::move(flat));
  const bool constant = std::ranges::all_of(group.positions, &Expr::is_literal);
  if (constant) constant_groups_.emplace(&group, id);
  return id;
}

flat::GroupId Resolver::intern(flat::Group group) {
  const std::uint64_t hash = static_cast<std::uint64_t>(group.ranks[0].value) * 1'000'003U +
                             static_cast<std::uint64_t>(group.ranks.size()) * 8191U +
                             std::hash<std::string>{}(group.channel);
  const auto [first, last] = groups_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (result_.groups[it->second] == group) return it->second;
  }
  const flat::GroupId id(result_.groups.size());
  result_.groups.push_back(std::move(group));
  groups_.emplace(hash, id);
  return id;
}

// ---- actions

void Resolver::action(const Compute& compute, flat::Operation& flat) {
  const std::size_t first = result_.accesses.size();
  for (const Access& access : compute.accesses) {
    try {
      flat::Access entry{.kind = access.kind, .region = region(access.region)};
      if (plan_.declares_values) entry.value = value(access.value, entry.region);
      result_.accesses.push_back(entry);
    } catch (const InputError& error) {  // an access has its own line
      Diagnostic diagnostic = error.diagnostics().front();
      diagnostic.where.line = access.origin.line;
      throw InputError(std::move(diagnostic));
    }
  }
  flat.accesses = slice(first, result_.accesses.size());
}

void Resolver::action(const Copy& copy, flat::Operation& flat) {
  flat.from = region(copy.from);
  flat.to = region(copy.to);
}

void Resolver::action(const Send& send, flat::Operation& flat) {
  flat.from = region(send.from);
  flat.peer = peer(send.peer);
  flat.tag = number(send.tag);
}

void Resolver::action(const Receive& receive, flat::Operation& flat) {
  flat.to = region(receive.to);
  flat.peer = peer(receive.peer);
  flat.tag = number(receive.tag);
}

void Resolver::action(const Collective& collective, flat::Operation& flat) {
  if (collective.kind != CollectiveKind::barrier) {
    flat.from = region(collective.from);
    flat.to = region(collective.to);
  }
  flat.group = group(collective.over);
  flat.root = number(collective.root);
  const std::int64_t size = result_.groups[flat.group].ranks.size();
  if (flat.root < 0 || flat.root >= size) {
    throw_input_error("D206",
                      fmt::format("there is no root {} in a group of {} ranks", flat.root, size),
                      "a root is a position in its group, counted from 0");
  }
}

void Resolver::action(const Exchange& exchange, flat::Operation& flat) {
  flat.from = region(exchange.from);
  flat.to = region(exchange.to);
  flat.group = group(exchange.over);
}

}  // namespace shiplap::plan
