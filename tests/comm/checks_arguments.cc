// Invalid arguments are rejected at once and have no effect: the next call works.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "reference.h"
#include "shiplap/base/error.h"

namespace shiplap::comm {
namespace {

template <class Function>
void expect_rejected(CheckContext& ctx, const Function& function, const std::string& what) {
  const std::optional<InputError> error = ctx.expect_throws<InputError>(function, what);
  if (error) {
    ctx.expect_equal(error->diagnostics().front().code, std::string("D300"), what);
    ctx.expect(!error->diagnostics().front().what.empty(), what + ": has a message");
  }
  ctx.expect(ctx.comm.alive(), what + ": still alive");
}

// After rejected calls, collectives and messages still match.
void expect_usable(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  try_all_reduce<std::int32_t>(ctx, comm, 5, 11, ReduceOp::sum);
  const std::int32_t local = comm.rank();
  std::int32_t got = -1;
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  Request receive = comm.ireceive(std::span(&got, 1), previous);
  comm.send(std::span(&local, 1), (comm.rank() + 1) % comm.size());
  receive.wait();
  ctx.expect_equal(got, previous, "what the previous rank sent");
}

void peers(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  std::vector<float> data(3);
  for (const int peer : {-1, comm.size(), std::numeric_limits<int>::min()}) {
    const std::string what = "peer " + std::to_string(peer);
    expect_rejected(ctx, [&] { comm.send(view(data), peer); }, "send, " + what);
    expect_rejected(ctx, [&] { (void)comm.receive(std::span(data), peer); }, "receive, " + what);
    expect_rejected(ctx, [&] { (void)comm.isend(view(data), peer); }, "isend, " + what);
    expect_rejected(ctx, [&] { (void)comm.ireceive(std::span(data), peer); }, "ireceive, " + what);
  }
  expect_usable(ctx);
}

void tags(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  std::vector<float> data(3);
  for (const int tag : {-1, Communicator::kMaxTag + 1, std::numeric_limits<int>::max()}) {
    const std::string what = "tag " + std::to_string(tag);
    expect_rejected(ctx, [&] { (void)comm.isend(view(data), 0, tag); }, "isend, " + what);
    expect_rejected(
        ctx, [&] { (void)comm.ireceive(std::span(data), 0, tag); }, "ireceive, " + what);
  }
  expect_usable(ctx);
}

void roots(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  std::vector<float> data(3);
  for (const int root : {-1, comm.size(), std::numeric_limits<int>::max()}) {
    expect_rejected(
        ctx, [&] { comm.broadcast(std::span(data), root); }, "root " + std::to_string(root));
  }
  expect_usable(ctx);
}

void sizes(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::size_t ranks = ranks_of(comm);
  std::vector<std::int32_t> some(4);
  std::vector<std::int32_t> more(4 * ranks + 1);
  expect_rejected(ctx, [&] { comm.all_gather(view(some), std::span(more)); }, "all_gather");
  expect_rejected(ctx, [&] { comm.reduce_scatter(view(more), std::span(some)); }, "reduce_scatter");
  std::vector<std::int32_t> out(4 * ranks);
  expect_rejected(ctx, [&] { comm.all_to_all(view(more), std::span(out)); }, "all_to_all");
  std::vector<std::int32_t> none;
  expect_rejected(ctx, [&] { comm.all_gather(view(some), std::span(none)); }, "nothing to hold it");
  expect_usable(ctx);
}

void uneven_all_to_all(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  std::vector<std::int32_t> in(ranks_of(comm) + 1);
  std::vector<std::int32_t> out(in.size());
  expect_rejected(ctx, [&] { comm.all_to_all(view(in), std::span(out)); }, "size + 1 elements");
  expect_usable(ctx);
}

struct WrongPieces {
  std::string what;
  std::vector<std::int64_t> counts;
  std::vector<std::int64_t> offsets;
};

// All wrong for a buffer with two elements for each rank.
std::vector<WrongPieces> wrong_pieces(std::size_t ranks) {
  const std::vector<std::int64_t> twos(ranks, 2);
  std::vector<std::int64_t> packed(ranks);
  for (std::size_t k = 0; k < ranks; ++k) packed[k] = 2 * static_cast<std::int64_t>(k);
  const auto with = [&](std::vector<std::int64_t> list, std::int64_t last) {
    list.back() = last;
    return list;
  };
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const auto room = 2 * static_cast<std::int64_t>(ranks);
  return {{"a piece beyond the end", twos, with(packed, room - 1)},
          {"a piece before the beginning", twos, with(packed, -1)},
          {"an offset that overflows", twos, with(packed, kMax)},
          {"too many elements", with(twos, 3), {}},
          {"a count that overflows", with(twos, kMax), {}},
          {"a negative count", with(twos, -1), {}},
          {"a negative count with offsets", with(twos, -2), packed},
          {"too few counts", std::vector<std::int64_t>(ranks - 1, 2), {}},
          {"too many counts", std::vector<std::int64_t>(ranks + 1, 1), {}},
          {"too many offsets", twos, std::vector<std::int64_t>(ranks + 1, 0)}};
}

void pieces_of_all_gather_v(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  std::vector<double> out(2 * ranks_of(comm));
  for (const WrongPieces& wrong : wrong_pieces(ranks_of(comm))) {
    // The local piece has the right size: only the pieces are invalid.
    const bool has = rank_of(comm) < wrong.counts.size() && wrong.counts[rank_of(comm)] >= 0;
    const std::int64_t local = has ? wrong.counts[rank_of(comm)] : 0;
    const std::vector<double> in(local < 4 ? static_cast<std::size_t>(local) : 0);
    const Pieces pieces{.counts = wrong.counts, .offsets = wrong.offsets};
    expect_rejected(ctx, [&] { comm.all_gather_v(view(in), std::span(out), pieces); }, wrong.what);
  }
  expect_usable(ctx);
}

void local_piece_of_all_gather_v(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::vector<std::int64_t> counts(ranks_of(comm), 2);
  const std::vector<double> in(3);
  std::vector<double> out(2 * ranks_of(comm));
  const Pieces pieces{.counts = counts};
  expect_rejected(
      ctx, [&] { comm.all_gather_v(view(in), std::span(out), pieces); },
      "a local piece of another size");
  expect_usable(ctx);
}

void pieces_of_all_to_all_v(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::vector<std::int64_t> twos(ranks_of(comm), 2);
  const Pieces right{.counts = twos};
  const std::vector<double> in(2 * ranks_of(comm));
  std::vector<double> out(2 * ranks_of(comm));
  for (const WrongPieces& wrong : wrong_pieces(ranks_of(comm))) {
    const Pieces pieces{.counts = wrong.counts, .offsets = wrong.offsets};
    expect_rejected(
        ctx, [&] { comm.all_to_all_v(view(in), pieces, std::span(out), right); },
        "to: " + wrong.what);
    expect_rejected(
        ctx, [&] { comm.all_to_all_v(view(in), right, std::span(out), pieces); },
        "from: " + wrong.what);
  }
  expect_usable(ctx);
}

void colours(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  expect_rejected(ctx, [&] { (void)comm.split(-1, 0, "part"); }, "a negative colour");
  expect_usable(ctx);
}

void meshes(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  using Ints = std::vector<int>;
  const auto reject = [&](const Ints& shape, const Ints& along, const std::string& what) {
    expect_rejected(ctx, [&] { (void)comm.split_along(shape, along, "part"); }, what);
  };
  reject({comm.size() + 1}, {0}, "too large");
  reject({comm.size(), 2}, {0}, "twice too large");
  reject({comm.size(), 0}, {0}, "an axis of none");
  reject({-1, -comm.size()}, {0}, "negative axes");
  reject({65536, 65536}, {0}, "a product that overflows");
  reject({comm.size()}, {1}, "an axis that is not there");
  reject({comm.size()}, {-1}, "a negative axis");
  expect_usable(ctx);
}

void timeouts(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const double before = comm.timeout().value;
  for (const double seconds : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    expect_rejected(
        ctx, [&] { comm.set_timeout(Seconds{seconds}); }, "timeout " + std::to_string(seconds));
  }
  ctx.expect_equal(comm.timeout().value, before, "the timeout");
  expect_usable(ctx);
}

void endless_timeout(CheckContext& ctx) {
  ctx.comm.set_timeout(Seconds{std::numeric_limits<double>::infinity()});
  expect_usable(ctx);
}

}  // namespace

void add_argument_checks(std::vector<Check>& checks) {
  checks.push_back({"arguments/peers", 1, peers});
  checks.push_back({"arguments/tags", 1, tags});
  checks.push_back({"arguments/roots", 1, roots});
  checks.push_back({"arguments/sizes", 1, sizes});
  checks.push_back({"arguments/uneven_all_to_all", 2, uneven_all_to_all});
  checks.push_back({"arguments/pieces_of_all_gather_v", 1, pieces_of_all_gather_v});
  checks.push_back({"arguments/local_piece_of_all_gather_v", 1, local_piece_of_all_gather_v});
  checks.push_back({"arguments/pieces_of_all_to_all_v", 1, pieces_of_all_to_all_v});
  checks.push_back({"arguments/colours", 1, colours});
  checks.push_back({"arguments/meshes", 1, meshes});
  checks.push_back({"arguments/timeouts", 1, timeouts});
  checks.push_back({"arguments/endless_timeout", 1, endless_timeout});
}

}  // namespace shiplap::comm
