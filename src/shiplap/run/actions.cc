#include <algorithm>
#include <cstring>

#include "shiplap/base/error.h"
#include "shiplap/run/actions_internal.h"
#include "shiplap/run/arithmetic_internal.h"

namespace shiplap::run {
namespace {

using plan::flat::Operation;

void copy_bytes(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty() && from.data() != to.data()) std::memmove(to.data(), from.data(), from.size());
}

template <class T>
std::span<T> numbers(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

// Calls `act` with a value of the C++ type of `type`.
template <class Act>
void dispatch_dtype(DType type, const Act& act) {
  switch (type) {
    case DType::f32:
      return act(float{});
    case DType::f64:
      return act(double{});
    case DType::i32:
      return act(std::int32_t{});
    case DType::i64:
      return act(std::int64_t{});
    case DType::u8:
      return act(std::uint8_t{});
    default:
      throw InternalError("a type that cannot be reduced");
  }
}

class CollectiveCall {
 public:
  CollectiveCall(const ActionContext& context, const Operation& op, comm::Communicator& group)
      : context_(context),
        op_(op),
        collective_(std::get<plan::Collective>(op.source->action)),
        group_(group) {}

  void run() {
    switch (collective_.kind) {
      case CollectiveKind::barrier:
        return group_.barrier();
      case CollectiveKind::all_reduce:
        copy_bytes(from(), to());
        return reduce_in_place(to());
      case CollectiveKind::all_gather:
        return all_gather();
      case CollectiveKind::reduce_scatter:
        return reduce_scatter();
      case CollectiveKind::all_to_all:
        return all_to_all();
      case CollectiveKind::broadcast:
        if (is_root()) copy_bytes(from(), to());
        return group_.broadcast(to(), static_cast<int>(op_.root));
      case CollectiveKind::reduce:
        return reduce();
    }
    throw InternalError("unknown collective");
  }

 private:
  [[nodiscard]] std::span<std::byte> from() const { return context_.memory.rows(op_.from); }
  [[nodiscard]] std::span<std::byte> to() const { return context_.memory.rows(op_.to); }
  [[nodiscard]] bool is_root() const { return group_.rank() == op_.root; }
  [[nodiscard]] DType type() const { return context_.memory.type(op_.from.buffer); }

  [[nodiscard]] std::span<std::byte> local_piece(std::span<std::byte> whole) const {
    const std::vector<std::int64_t> ends = piece_offsets(context_.memory.program(), op_);
    const auto me = static_cast<std::size_t>(group_.rank());
    return whole.subspan(ends[me], ends[me + 1] - ends[me]);
  }

  // In-place all-reduce in the order of the group, and scaling. bf16 and f16 are accumulated in
  // float and rounded once.
  void reduce_in_place(std::span<std::byte> data) {
    const ReduceOp reduction = collective_.op;
    if (is_narrow(type())) return reduce_narrow(data);
    dispatch_dtype(accumulate_dtype(type()), [&](auto number) {
      group_.all_reduce(numbers<decltype(number)>(data), reduction);
    });
    if (collective_.scale != plan::Ratio()) scale(type(), data, collective_.scale);
  }

  void all_gather() {
    const std::span<const std::byte> local =
        same_rows(op_.from, op_.to) ? local_piece(to()) : from();
    if (!collective_.split.exists()) return group_.all_gather(local, to());
    group_.all_gather_v(local, to(), {.counts = piece_sizes()});
  }

  // All-reduce of bf16 and f16 as reduce-scatter plus all-gather. Data is sent in 16 bits.
  void reduce_narrow(std::span<std::byte> data) {
    const std::int64_t ranks = group_.size();
    const std::int64_t numbers = std::ssize(data) / bytes_of(type());
    std::vector<std::int64_t> counts;
    std::int64_t begin = 0;
    for (std::int64_t k = 0; k < ranks; ++k) {
      if (k == group_.rank()) begin = k * numbers / ranks * bytes_of(type());
      counts.push_back(((k + 1) * numbers / ranks - k * numbers / ranks) * bytes_of(type()));
    }
    const std::span<std::byte> local = data.subspan(begin, counts[group_.rank()]);
    reduce_piece(data, counts, local);
    group_.all_gather_v(std::span<const std::byte>(local), data, {.counts = counts});
  }

  // Reduce-scatter: `local` gets its piece of the sum of `all` over the ranks, accumulated in float
  // in the order of the group, scaled and rounded once.
  void reduce_piece(std::span<const std::byte> all, std::span<const std::int64_t> counts,
                    std::span<std::byte> local) {
    const std::vector<std::int64_t> each(counts.size(), std::ssize(local));
    context_.scratch.pieces.resize(local.size() * counts.size());
    const std::span<std::byte> pieces(context_.scratch.pieces);
    group_.all_to_all_v(all, {.counts = counts}, pieces, {.counts = each});
    std::vector<float>& sums = context_.scratch.floats;
    sums = widen(type(), pieces.first(local.size()));
    for (std::size_t k = 1; k < counts.size(); ++k) {
      const std::vector<float> more = widen(type(), pieces.subspan(k * local.size(), local.size()));
      std::byte* const into = std::as_writable_bytes(std::span(sums)).data();
      comm::combine(collective_.op, DType::f32, into, into, std::as_bytes(std::span(more)).data(),
                    sums.size());
    }
    scale(DType::f32, std::as_writable_bytes(std::span(sums)), collective_.scale);
    narrow(sums, type(), local);
  }

  // Piece sizes in bytes.
  [[nodiscard]] std::vector<std::int64_t> piece_sizes() const {
    const std::vector<std::int64_t> ends = piece_offsets(context_.memory.program(), op_);
    std::vector<std::int64_t> sizes;
    for (std::size_t k = 0; k + 1 < ends.size(); ++k) sizes.push_back(ends[k + 1] - ends[k]);
    return sizes;
  }

  // Uneven pieces: all-reduce everything and take the local piece, which gives the same bits.
  void reduce_scatter() {
    const std::span<std::byte> local = same_rows(op_.from, op_.to) ? local_piece(from()) : to();
    if (is_narrow(type())) return reduce_piece(from(), piece_sizes(), local);
    if (collective_.split.exists()) {
      const std::span<std::byte> all = context_.scratch.first(from().size());
      copy_bytes(from(), all);
      reduce_in_place(all);
      return copy_bytes(local_piece(all), local);
    }
    dispatch_dtype(accumulate_dtype(type()), [&](auto number) {
      using T = decltype(number);
      group_.reduce_scatter(std::span<const T>(numbers<T>(from())), numbers<T>(local),
                            collective_.op);
    });
    if (collective_.scale != plan::Ratio()) scale(type(), local, collective_.scale);
  }

  void all_to_all() {
    std::span<std::byte> sent = from();
    if (same_rows(op_.from, op_.to)) {
      sent = context_.scratch.first(from().size());
      copy_bytes(from(), sent);
    }
    if (!collective_.split.exists()) {
      return group_.all_to_all(std::span<const std::byte>(sent), to());
    }
    const std::vector<std::int64_t> each(group_.size(), std::ssize(to()) / group_.size());
    group_.all_to_all_v(std::span<const std::byte>(sent), {.counts = piece_sizes()}, to(),
                        {.counts = each});
  }

  void reduce() {
    const std::span<std::byte> all = context_.scratch.first(from().size());
    copy_bytes(from(), all);
    reduce_in_place(all);
    if (is_root()) copy_bytes(all, to());
  }

  const ActionContext& context_;
  const Operation& op_;
  const plan::Collective& collective_;
  comm::Communicator& group_;
};

// The messages of one rank in an exchange, sorted by the position of the peer in the group.
class ExchangeCall {
 public:
  ExchangeCall(const ActionContext& context, const Operation& op, comm::Communicator& group)
      : context_(context),
        op_(op),
        exchange_(std::get<plan::Exchange>(op.source->action)),
        group_(group),
        width_(static_cast<std::size_t>(context.memory.row_bytes(op.to.buffer))) {
    const plan::RankProgram& program = context.memory.program();
    const plan::ExchangeTable& table = program.plan->tables[exchange_.table];
    const std::int64_t rank = program.rank.value;
    sends_ = exchange_.reversed ? table.receives_of(rank) : table.sends_of(rank);
    receives_ = exchange_.reversed ? table.sends_of(rank) : table.receives_of(rank);
  }

  void run() {
    const bool stages = exchange_.add || op_.from.buffer == op_.to.buffer;
    const std::span<std::byte> to = context_.memory.rows(op_.to);
    std::size_t arriving = 0;
    for (const plan::TableRow& row : receives_) arriving += bytes_of(row);
    const std::span<std::byte> staged = context_.scratch.first(stages ? arriving : 0);
    std::vector<std::span<std::byte>> targets;  // of each message, in the order of the table
    std::size_t used = 0;
    for (const plan::TableRow& row : receives_) {
      targets.push_back(stages ? staged.subspan(used, bytes_of(row)) : at(to, row));
      used += bytes_of(row);
    }
    move(targets);
    if (!stages) return;
    // The table is sorted by peer, then row: that is the order of the sum.
    for (std::size_t k = 0; k < targets.size(); ++k) {
      const std::span<std::byte> rows = at(to, receives_[k]);
      if (exchange_.add) {
        add(context_.memory.type(op_.to.buffer), rows, targets[k]);
      } else {
        copy_bytes(targets[k], rows);
      }
    }
  }

 private:
  [[nodiscard]] std::size_t bytes_of(const plan::TableRow& row) const {
    return static_cast<std::size_t>(row.count) * width_;
  }
  [[nodiscard]] std::span<std::byte> at(std::span<std::byte> region,
                                        const plan::TableRow& row) const {
    return region.subspan(static_cast<std::size_t>(row.first) * width_, bytes_of(row));
  }
  [[nodiscard]] std::size_t position(const plan::TableRow& row) const {
    const plan::RankProgram& program = context_.memory.program();
    return static_cast<std::size_t>(program.groups[op_.group].ranks.find(Rank(row.peer)));
  }

  void move(const std::vector<std::span<std::byte>>& targets) {
    const auto ranks = static_cast<std::size_t>(group_.size());
    const std::span<std::byte> from = context_.memory.rows(op_.from);
    std::vector<std::vector<std::span<const std::byte>>> outgoing(ranks);
    std::vector<std::vector<std::span<std::byte>>> incoming(ranks);
    for (const plan::TableRow& row : sends_) outgoing[position(row)].push_back(at(from, row));
    for (std::size_t k = 0; k < targets.size(); ++k) {
      incoming[position(receives_[k])].push_back(targets[k]);
    }
    std::vector<std::size_t> first_out{0};
    std::vector<std::size_t> first_in{0};
    std::vector<std::span<const std::byte>> out;
    std::vector<std::span<std::byte>> in;
    for (std::size_t k = 0; k < ranks; ++k) {
      out.insert(out.end(), outgoing[k].begin(), outgoing[k].end());
      in.insert(in.end(), incoming[k].begin(), incoming[k].end());
      first_out.push_back(out.size());
      first_in.push_back(in.size());
    }
    group_.all_to_all_parts({.first = first_out, .parts = out}, {.first = first_in, .parts = in});
  }

  const ActionContext& context_;
  const Operation& op_;
  const plan::Exchange& exchange_;
  comm::Communicator& group_;
  std::size_t width_;
  std::span<const plan::TableRow> sends_;
  std::span<const plan::TableRow> receives_;
};

}  // namespace

void do_copy(const ActionContext& context, const Operation& op) {
  const RankMemory& memory = context.memory;
  const bool adds = std::get<plan::Copy>(op.source->action).add;
  const DType type = memory.type(op.to.buffer);
  const auto put = [&](std::span<const std::byte> from, std::span<std::byte> to) {
    adds ? add(type, to, from) : copy_bytes(from, to);
  };
  if (op.from.listed < 0 && op.to.listed < 0) return put(memory.rows(op.from), memory.rows(op.to));
  for (std::int64_t k = 0; k < op.from.count; ++k) {
    put(memory.row(op.from, k), memory.row(op.to, k));
  }
}

void do_collective(const ActionContext& context, const Operation& op, comm::Communicator& group) {
  CollectiveCall(context, op, group).run();
}

void do_exchange(const ActionContext& context, const Operation& op, comm::Communicator& group) {
  ExchangeCall(context, op, group).run();
}

}  // namespace shiplap::run
