// Builds the plans of overlapped GEMMs (tensor parallelism).
//
// A plan is one SPMD program. The rows of rank p start at cut[p]; they are split into S chunks, and
// chunk c = p*S + u starts at row at[c]. Empty chunks are not skipped: an empty message costs
// little, and so all ranks agree on the number of messages.
//
// all_gather, ring_exchange: a ring. Step s sends the chunk that step s-1 received; the GEMM of a
// chunk starts when it has arrived, and that of the local rows at once.
//
// reduce_scatter, ring_exchange: direct exchange. Chunks of other ranks are multiplied first and
// sent to their owner, which adds what it receives in a fixed order, so that results are
// reproducible. all_reduce then sends the sums to all ranks.
//
// pipeline: chunk i of all ranks is one stage. The collective of stage i overlaps the GEMM of stage
// i+1.
//
// Quantized partial sums (FP8 with scales) cannot be added in transit, since sums need new scales.
// So a reduction becomes an all_to_all, and owners add the partial sums in f32; all_reduce
// quantizes the result again and gathers it.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/overlap/problem_internal.h"
#include "shiplap/plan/builder.h"
#include "shiplap/plan/text.h"

namespace shiplap::overlap {
namespace {

using plan::BufferRef;
using plan::Expr;
using plan::ListRef;
using plan::OperationName;
using plan::Reference;
using plan::Region;
using plan::TensorRef;
using plan::Work;
using Accesses = std::vector<plan::Access>;
using After = std::vector<Reference>;

// Operation names.
const OperationName kGemm{"p"};
const OperationName kTile{"t"};
const OperationName kLocalTile{"o"};
const OperationName kSent{"s"};
const OperationName kReceived{"r"};
const OperationName kGot{"g"};
const OperationName kSum{"e"};
const OperationName kGathered{"q"};
const OperationName kArrived{"b"};
const OperationName kBroadcast{"f"};

class OverlapBuilder {
 public:
  OverlapBuilder(const Choice& choice, const Problem& problem)
      : choice_(choice),
        problem_(problem),
        cut_values_(rank_offsets(choice, problem)),
        at_values_(chunk_offsets(choice, problem)) {}

  plan::Plan build() && {
    const bool gathers = choice_.type == Type::all_gather;
    cut_ = b_.list("cut", cut_values_);
    at_ = b_.list("at", at_values_);
    ff_ = b_.list("ff", split_offsets(gathers ? problem_.n : problem_.k, ranks_));
    gathers ? gathered() : summed();
    return std::move(b_).build();
  }

 private:
  [[nodiscard]] bool scatters() const { return choice_.type == Type::reduce_scatter; }
  [[nodiscard]] bool is(Method method) const { return choice_.method == method; }

  // The columns of the reduced matrix; for bulk it is not the result of the GEMM.
  [[nodiscard]] std::int64_t summed_columns() const {
    const bool is_separate = is(Method::bulk) && problem_.bulk_columns != 0;
    return is_separate ? problem_.bulk_columns : problem_.n;
  }

  // ---- declarations

  // A buffer of high-precision rows.
  BufferRef buffer(const char* name, Expr rows, const Expr& width, DType type) {
    return b_.buffer({name, std::move(rows), bytes_of(type) * width, type});
  }
  // A buffer of rows in a format, with `more` bytes at the end of each row.
  BufferRef buffer(const char* name, Expr rows, const Expr& width, const QuantFormat& format,
                   std::int64_t more = 0) {
    Expr bytes = format.scaling == Scaling::none  ? bytes_of(problem_.type) * width
                 : format.scaling == Scaling::row ? width + 4
                                                  : width + div(width + 31, 32);
    const DType type = is_high_precision(format) ? problem_.type : format.type;
    return b_.buffer({name, std::move(rows), more == 0 ? bytes : bytes + more, type});
  }

  // Stage i of a pipeline is chunk i of every rank. They are contiguous in y: that of rank p starts
  // at stage[i*P + p].
  void stage_lists() {
    Offsets stage{0};
    for (int i = 0; i < chunks_; ++i) {
      Offsets within{0};
      for (int p = 0; p < ranks_; ++p) {
        const std::size_t c = at(p * chunks_ + i);
        within.push_back(within.back() + at_values_[c + 1] - at_values_[c]);
        stage.push_back(stage.back() + at_values_[c + 1] - at_values_[c]);
      }
      stage_cuts_.push_back(b_.list(fmt::format("cut{}", i), std::move(within)));
    }
    stage_ = b_.list("stage", std::move(stage));
  }

  [[nodiscard]] Expr local_rows() const { return cut_.size(tp_); }
  [[nodiscard]] Expr local_shard() const { return ff_.size(tp_); }

  TensorRef tensor(const char* name, const char* kind, std::vector<plan::Dimension> part,
                   std::vector<plan::Dimension> sum = {}) {
    return b_.tensor({.name = name, .kind = kind, .part = std::move(part), .sum = std::move(sum)});
  }

  // ---- building blocks of operations

  // The cost of a GEMM of `rows` rows. Every tile reads all weights.
  [[nodiscard]] Work gemm_work(const Expr& rows) const {
    const std::int64_t value_bytes = bytes_of(problem_.type);
    const std::int64_t x = bytes_in(problem_.x, problem_.type);
    const std::int64_t w = bytes_in(problem_.w, problem_.type) * std::max(1, problem_.groups);
    Work work{.kernel_class = "gemm",
              .flop = 2 * rows * k_ * n_,
              .bytes = x == value_bytes && w == value_bytes
                           ? value_bytes * (rows * (k_ + n_) + k_ * n_)
                           : rows * (x * k_ + value_bytes * n_) + w * k_ * n_};
    if (!is_high_precision(problem_.x) && !is_high_precision(problem_.w))
      work.type = problem_.x.type;
    return work;
  }
  // The cost of converting n rows to or from f32, or of adding them in f32. `bytes`: of a value.
  [[nodiscard]] Work conversion_work(const Expr& n, bool adds, std::int64_t bytes) const {
    const Expr columns = is(Method::bulk) ? Expr(summed_columns()) : n_;
    return {.kernel_class = "vector",
            .flop = adds ? n * n_ : 0,
            .bytes = n * columns * (bytes + (adds ? 8 : 4))};
  }
  [[nodiscard]] Work conversion_work(const Expr& n, bool adds) const {
    return conversion_work(n, adds, bytes_in(problem_.sums, problem_.type));
  }

  // Chunk c of a matrix of tokens.
  [[nodiscard]] TensorRef tokens(const TensorRef& of, const Expr& c) const {
    return of(tok_, at_[c], at_.size(c));
  }
  [[nodiscard]] TensorRef local_tokens(const TensorRef& of) const {
    return of(tok_, cut_[tp_], local_rows());
  }
  [[nodiscard]] TensorRef all_tokens(const TensorRef& of) const { return of(tok_, 0, problem_.m); }
  // The partial sum of rank `p`, or its shard of other matrices.
  [[nodiscard]] TensorRef of_rank(const TensorRef& of, const Expr& p) const {
    return of(ff_dimension_, p, 1);
  }
  [[nodiscard]] TensorRef of_this(const TensorRef& of) const { return of_rank(of, tp_); }

  void multiply(Reference name, const Expr& rows, plan::Access from, plan::Access into,
                After after = {}) {
    Accesses accesses{std::move(from), reads(w_, of_this(w_tensor_)), std::move(into)};
    b_.add({.name = std::move(name),
            .joined = choice_.atomic,
            .action = plan::Compute{"gemm", std::move(accesses)},
            .after = std::move(after),
            .work = gemm_work(rows)});
  }
  // The whole local GEMM.
  void whole_gemm(Reference name = {}) {
    multiply(std::move(name), problem_.m, reads(x_, of_this(all_tokens(x_tensor_))),
             writes(y_, of_this(y_tensor_)));
  }
  // The GEMM of chunk c.
  void tile(Reference name, const Expr& c, Region into) {
    multiply(std::move(name), at_.size(c), reads(x_.cut(c, at_), of_this(tokens(x_tensor_, c))),
             writes(std::move(into), of_this(tokens(y_tensor_, c))));
  }
  // On the reduction stream: converts rows or, if the work has flop, adds them.
  void convert(Region from, Region to, const TensorRef& what, Work work, After after = {},
               Reference name = {}) {
    const bool added = work.flop != Expr(0);
    Accesses accesses{reads(std::move(from), what)};
    accesses.push_back(added ? adds(std::move(to), what) : writes(std::move(to), what));
    b_.add({.name = std::move(name),
            .stream = reduce_,
            .action = plan::Compute{added ? "add" : "cast", std::move(accesses)},
            .after = std::move(after),
            .work = std::move(work)});
  }
  // An asynchronous message.
  void post(Reference name, plan::Action action, After after = {}) {
    b_.add({.name = std::move(name),
            .stream = net_,
            .async = true,
            .action = std::move(action),
            .after = std::move(after)});
  }
  void collective(plan::Operation operation, CollectiveKind kind, Region from, Region to,
                  ListRef split = {}) {
    operation.action = plan::Collective{.kind = kind,
                                        .split = split.id,
                                        .from = std::move(from),
                                        .to = std::move(to),
                                        .over = tp_.group()};
    b_.add(std::move(operation));
  }

  // For each of `count` steps, or rank distances, and each chunk.
  template <class Body>
  void each_chunk_of(const char* variable, int count, const Body& body) {
    b_.repeat(variable, count,
              [&](const Expr& d) { b_.repeat("u", chunks_, [&](const Expr& u) { body(d, u); }); });
  }
  // Chunk u of a rank.
  Expr let_chunk(const Expr& rank, const Expr& u) { return b_.let("c", rank * chunks_ + u); }
  Expr let_chunk_of_next(const Expr& d, const Expr& u) {
    return let_chunk(mod(tp_ + d + 1, ranks_), u);
  }

  // ---- X is gathered

  void gathered() {
    x_tensor_ = tensor("X", "Activation", {tok_});
    w_tensor_ = tensor("W", plan::kWeight, {ff_dimension_});
    y_tensor_ = tensor("Y", "Activation", {tok_, ff_dimension_});
    b_.program("all");
    // With groups, each row carries its group number.
    const std::int64_t more = problem_.groups == 0 ? 0 : kGroupBytes;
    x_ = buffer("x", problem_.m, problem_.k, problem_.x, more);
    w_ = buffer("w", problem_.groups == 0 ? local_shard() : problem_.groups * local_shard(),
                problem_.k, problem_.w);
    y_ = buffer("y", problem_.m, local_shard(), problem_.type);
    net_ = b_.stream("net");
    k_ = b_.let("inner", problem_.k);
    n_ = b_.let("wide", local_shard());
    b_.given(x_.cut(tp_, cut_), local_tokens(x_tensor_));
    b_.given(w_, of_this(w_tensor_));
    b_.goal(x_, x_tensor_);
    b_.goal(y_, of_this(all_tokens(y_tensor_)));
    if (!is(Method::none)) return ring();
    collective({}, CollectiveKind::all_gather, x_, x_, cut_);
    multiply({}, problem_.m, reads(x_, x_tensor_), writes(y_, of_this(all_tokens(y_tensor_))));
  }

  // Chunks are forwarded to the next rank as soon as they arrive, and multiplied.
  void ring() {
    each_chunk_of("s", ranks_ - 1, [&](const Expr& s, const Expr& u) {
      const Expr c = let_chunk(mod(tp_ - s - 1, ranks_), u);
      post(kReceived(s + 1, u), plan::Receive{x_.cut(c, at_), tp_.wrap(-1), u});
    });
    each_chunk_of("s", ranks_ - 1, [&](const Expr& s, const Expr& u) {
      const Expr c = let_chunk(mod(tp_ - s, ranks_), u);
      post(kSent(s, u), plan::Send{x_.cut(c, at_), tp_.wrap(1), u}, {kReceived(s, u)});
    });
    // The local rows are available at once.
    multiply({}, local_rows(), reads(x_.cut(tp_, cut_), local_tokens(x_tensor_)),
             writes(y_.cut(tp_, cut_), of_this(local_tokens(y_tensor_))));
    each_chunk_of("s", ranks_ - 1, [&](const Expr& s, const Expr& u) {
      const Expr c = let_chunk(mod(tp_ - s - 1, ranks_), u);
      multiply({}, at_.size(c), reads(x_.cut(c, at_), tokens(x_tensor_, c)),
               writes(y_.cut(c, at_), of_this(tokens(y_tensor_, c))), {kReceived(s + 1, u)});
    });
  }

  // ---- Y is summed

  void summed() {
    if (is(Method::pipeline) && (scatters() || quantized_)) stage_lists();
    x_tensor_ = tensor("X", "Activation", {tok_, ff_dimension_});
    w_tensor_ = tensor("W", plan::kWeight, {ff_dimension_});
    y_tensor_ = tensor("Y", "Activation", {tok_}, {ff_dimension_});
    if (is(Method::bulk)) z_tensor_ = tensor("Z", "Activation", {row_}, {ff_dimension_});
    b_.program("all");
    x_ = buffer("x", problem_.m, local_shard(), problem_.x);
    w_ = buffer("w", problem_.n * std::max(1, problem_.groups), local_shard(), problem_.w);
    quantized_ ? quantized_buffers() : high_precision_buffers();
    net_ = b_.stream("net");
    if (quantized_ || is(Method::ring_exchange)) reduce_ = b_.stream("reduce");
    k_ = b_.let("inner", local_shard());
    n_ = b_.let("wide", problem_.n);
    b_.given(x_, of_this(all_tokens(x_tensor_)));
    b_.given(w_, of_this(w_tensor_));
    switch (choice_.method) {
      case Method::none:
        return quantized_ ? quantized_serial() : serial();
      case Method::bulk:
        return bulk();
      case Method::pipeline:
        return quantized_ ? quantized_pipeline() : scatters() ? pipeline() : reduce_chunks();
      case Method::ring_exchange:
        return direct();
    }
  }

  void high_precision_buffers() {
    y_ = buffer("y", problem_.m, problem_.n, problem_.type);
    if (scatters()) out_ = buffer("out", local_rows(), summed_columns(), problem_.type);
    if (is(Method::bulk)) z_ = buffer("z", cut_values_.back(), summed_columns(), problem_.type);
    if (!is(Method::ring_exchange)) return;
    got_ = buffer("got", (ranks_ - 1) * local_rows(), problem_.n, problem_.type);
    total_ = buffer("total", local_rows(), problem_.n, DType::f32);
  }

  void quantized_buffers() {
    const std::int64_t columns = summed_columns();
    const bool is_direct = is(Method::ring_exchange);
    if (is(Method::bulk)) {
      y_ = buffer("y", problem_.m, problem_.n, problem_.type);
      z_ = buffer("z", cut_values_.back(), columns, problem_.sums);
    } else {
      y_ = buffer("y", problem_.m, columns, problem_.sums);
    }
    got_ = buffer("got", (is_direct ? ranks_ - 1 : ranks_) * local_rows(), columns, problem_.sums);
    if (is_direct) mine_ = buffer("mine", local_rows(), columns, DType::f32);
    total_ = buffer("total", local_rows(), columns, DType::f32);
    out_ =
        buffer("out", scatters() ? local_rows() : Expr(cut_values_.back()), columns, problem_.type);
  }

  void goal() {
    if (scatters()) {
      b_.goal(out_, local_tokens(y_tensor_));
    } else if (choice_.type == Type::all_reduce) {
      b_.goal(quantized_ ? out_ : y_, y_tensor_);
    } else {
      b_.goal(y_, of_this(y_tensor_));
    }
  }

  void serial() {
    goal();
    whole_gemm();
    if (scatters()) collective({}, CollectiveKind::reduce_scatter, y_, out_, cut_);
    if (choice_.type == Type::all_reduce) collective({}, CollectiveKind::all_reduce, y_, y_);
  }

  void quantized_serial() {
    goal();
    whole_gemm(kGemm());
    collective({.name = kReceived(), .stream = net_, .after = {kGemm()}},
               CollectiveKind::all_to_all, y_, got_, cut_);
    const Expr u = b_.let("u", 0);
    const LocalChunk local = let_all_local();
    add_exchanged(local, {kReceived()});
    if (scatters()) return round_local(local, u, out_);
    round_local(local, u, y_.cut(tp_, cut_));
    collective({.name = kGot(), .stream = net_, .after = {kSum(0)}}, CollectiveKind::all_gather, y_,
               y_, cut_);
    convert(y_, out_, y_tensor_,
            {.kernel_class = "vector", .bytes = problem_.m * n_ * (1 + bytes_of(problem_.type))},
            {kGot()});
  }

  void bulk() {
    b_.goal(out_, z_tensor_(row_, cut_[tp_], local_rows()));
    b_.goal(y_, of_this(y_tensor_));
    b_.given(z_, of_this(z_tensor_));
    if (!quantized_) {
      collective({.stream = net_, .async = true}, CollectiveKind::reduce_scatter, z_, out_, cut_);
      return whole_gemm();
    }
    collective({.name = kReceived(), .stream = net_}, CollectiveKind::all_to_all, z_, got_, cut_);
    whole_gemm();
    const LocalChunk local = let_all_local();
    add_exchanged(local, {kReceived()});
    round_local(local, 0, out_);
  }

  void stage_tiles() {
    b_.repeat("i", chunks_, [&](const Expr& i) {
      b_.repeat("p", ranks_, [&](const Expr& p) {
        const Expr c = let_chunk(p, i);
        tile(kTile(i, p), c, y_.cut(i * ranks_ + p, stage_));
      });
    });
  }
  // Stage i, and the local chunk of it.
  [[nodiscard]] Region staged(int i) const {
    const int first = i * ranks_;
    return y_(stage_[first], stage_[first + ranks_] - stage_[first]);
  }
  [[nodiscard]] Expr local_chunk(int i) const { return tp_ * chunks_ + i; }

  void pipeline() {
    goal();
    stage_tiles();
    for (int i = 0; i < chunks_; ++i) {
      const Expr c = local_chunk(i);
      collective({.stream = net_, .after = {kTile(i, ranks_ - 1)}}, CollectiveKind::reduce_scatter,
                 staged(i), out_(at_[c] - cut_[tp_], at_.size(c)), stage_cuts_[at(i)]);
    }
  }

  void reduce_chunks() {
    goal();
    b_.repeat("c", std::int64_t{ranks_} * chunks_,
              [&](const Expr& c) { tile(kTile(c), c, y_.cut(c, at_)); });
    b_.repeat("c", std::int64_t{ranks_} * chunks_, [&](const Expr& c) {
      collective({.stream = net_, .after = {kTile(c)}}, CollectiveKind::all_reduce, y_.cut(c, at_),
                 y_.cut(c, at_));
    });
  }

  // Software pipeline: the all_to_all of chunk i+1 is issued before the all_gather of chunk i, so
  // that the network does not wait for sums in progress.
  void quantized_pipeline() {
    goal();
    stage_tiles();
    for (int i = 0; i < chunks_ + 2; ++i) {
      if (i < chunks_) exchange(i);
      if (i >= 1 && i <= chunks_) sum_exchanged(i - 1);
      if (i >= 2 && !scatters()) decode_gathered(i - 2);
    }
  }
  void exchange(int i) {
    const Expr c = local_chunk(i);
    collective({.name = kReceived(i), .stream = net_, .after = {kTile(i, ranks_ - 1)}},
               CollectiveKind::all_to_all, staged(i),
               got_(ranks_ * (at_[c] - cut_[tp_]), ranks_ * at_.size(c)), stage_cuts_[at(i)]);
  }
  void sum_exchanged(int i) {
    b_.repeat("v", 1, [&](const Expr& v) {
      const Expr u = b_.let("u", v + i);
      const LocalChunk local = let_local_chunk(u);
      add_exchanged(local, {kReceived(u)});
      round_local(local, u, scatters() ? out_(local.i, local.n) : y_.cut(u * ranks_ + tp_, stage_));
    });
    if (scatters()) return;
    collective({.name = kGathered(i), .stream = net_, .after = {kSum(i)}},
               CollectiveKind::all_gather, staged(i), staged(i), stage_cuts_[at(i)]);
  }
  void decode_gathered(int i) {
    b_.repeat("p", ranks_, [&](const Expr& p) {
      const Expr c = let_chunk(p, i);
      const Expr n = b_.let("n", at_.size(c));
      decode(c, y_.cut(i * ranks_ + p, stage_), y_tensor_(tok_, at_[c], n), n, {kGathered(i)});
    });
  }

  // Local rows i .. i+n, which are the rows of Y (bulk: of Z) from `first` on.
  struct LocalChunk {
    Expr c, first, n, i;
  };
  LocalChunk let_local_chunk(const Expr& u) {
    LocalChunk local;
    local.c = let_chunk(tp_, u);
    local.first = quantized_ ? b_.let("first", at_[local.c]) : at_[local.c];
    local.n = b_.let("n", at_.size(local.c));
    local.i = b_.let("i", at_[local.c] - cut_[tp_]);
    return local;
  }
  LocalChunk let_all_local() {
    LocalChunk local;
    local.first = b_.let("first", cut_[tp_]);
    local.n = b_.let("n", local_rows());
    local.i = b_.let("i", 0);
    return local;
  }
  [[nodiscard]] TensorRef part(const LocalChunk& local) const {
    return is(Method::bulk) ? z_tensor_(row_, local.first, local.n)
                            : y_tensor_(tok_, local.first, local.n);
  }
  [[nodiscard]] Region total(const LocalChunk& local) const { return total_(local.i, local.n); }

  // Adds the partial sums of all ranks, which are stored in the order of ranks.
  void add_exchanged(const LocalChunk& local, const After& after) {
    for (int p = 0; p < ranks_; ++p) {
      convert(got_(ranks_ * local.i + p * local.n, local.n), total(local), of_rank(part(local), p),
              conversion_work(local.n, p > 0), p == 0 ? after : After());
    }
  }
  // Rounds the sums of local rows.
  void round_local(const LocalChunk& local, const Expr& u, Region into) {
    const bool named = !quantized_ || choice_.type == Type::all_reduce;
    convert(total(local), std::move(into), part(local), conversion_work(local.n, false), {},
            named ? kSum(u) : Reference());
  }
  // Dequantizes rows of all_reduce, on the owner too, so that all ranks have the same bits.
  void decode(const Expr& c, Region from, const TensorRef& what, const Expr& n, After after) {
    convert(std::move(from), out_.cut(c, at_), what, conversion_work(n, false), std::move(after));
  }

  // Rows of other ranks are multiplied first and sent; the local partial sum is never quantized.
  // Received sums are added in a fixed order.
  void direct() {
    goal();
    const Expr local_count = b_.let("own", local_rows());
    each_chunk_of("d", ranks_ - 1, [&](const Expr& d, const Expr& u) {
      const auto rows = [&] {
        if (quantized_) {
          const LocalChunk local = let_local_chunk(u);
          return got_(d * local_count + local.i, local.n);
        }
        const Expr c = let_chunk(tp_, u);
        return got_(d * local_count + at_[c] - cut_[tp_], at_.size(c));
      };
      const Region into = rows();
      post(kGot(d, u), plan::Receive{into, tp_.wrap(-(d + 1)), u});
    });
    each_chunk_of("d", quantized_ ? ranks_ - 1 : ranks_, [&](const Expr& d, const Expr& u) {
      const Expr c = let_chunk_of_next(d, u);
      tile(kTile(d, u), c, y_.cut(c, at_));
    });
    if (quantized_) {
      b_.repeat("u", chunks_, [&](const Expr& u) {
        const LocalChunk local = let_local_chunk(u);
        tile(kLocalTile(u), local.c, mine_(local.i, local.n));
      });
    }
    each_chunk_of("d", ranks_ - 1, [&](const Expr& d, const Expr& u) {
      const Expr c = let_chunk_of_next(d, u);
      post(kSent(d, u), plan::Send{y_.cut(c, at_), tp_.wrap(d + 1), u}, {kTile(d, u)});
    });
    reduce(local_count);
    if (choice_.type == Type::all_reduce) broadcast_sums();
  }
  // First the received partial sums, in the order of arrival, then the local one, which is ready
  // last.
  void reduce(const Expr& local_count) {
    for (int d = 0; d + 1 < ranks_; ++d) {
      b_.repeat("u", chunks_, [&](const Expr& u) {
        const LocalChunk local = let_local_chunk(u);
        convert(got_(d * local_count + local.i, local.n), total(local),
                of_rank(part(local), mod(tp_ - (d + 1), ranks_)), conversion_work(local.n, d > 0),
                {kGot(d, u)});
      });
    }
    b_.repeat("u", chunks_, [&](const Expr& u) {
      const LocalChunk local = let_local_chunk(u);
      const bool adds = ranks_ > 1;
      convert(quantized_ ? mine_(local.i, local.n) : y_.cut(local.c, at_), total(local),
              of_this(part(local)),
              quantized_ ? conversion_work(local.n, adds, bytes_of(DType::f32))
                         : conversion_work(local.n, adds),
              {quantized_ ? kLocalTile(u) : kTile(ranks_ - 1, u)});
      round_local(local, u, scatters() ? out_(local.i, local.n) : y_.cut(local.c, at_));
      if (quantized_ && !scatters())
        decode(local.c, y_.cut(local.c, at_), part(local), local.n, {});
    });
  }
  // Sends the sums of local rows to all ranks. The rows of others are overwritten after they were
  // sent.
  void broadcast_sums() {
    each_chunk_of("d", ranks_ - 1, [&](const Expr& d, const Expr& u) {
      const Expr c = let_chunk_of_next(d, u);
      post(kArrived(d, u), plan::Receive{y_.cut(c, at_), tp_.wrap(d + 1), chunks_ + u},
           {kSent(d, u)});
    });
    b_.repeat("u", chunks_, [&](const Expr& u) {
      b_.repeat("d", ranks_ - 1, [&](const Expr& d) {
        const Expr c = let_chunk(tp_, u);
        post(kBroadcast(d, u), plan::Send{y_.cut(c, at_), tp_.wrap(-(d + 1)), chunks_ + u},
             {kSum(u)});
      });
    });
    if (!quantized_) return;
    each_chunk_of("d", ranks_ - 1, [&](const Expr& d, const Expr& u) {
      const Expr c = let_chunk_of_next(d, u);
      const Expr n = b_.let("n", at_.size(c));
      decode(c, y_.cut(c, at_), y_tensor_(tok_, at_[c], n), n, {kArrived(d, u)});
    });
  }

  Choice choice_;
  Problem problem_;
  int ranks_ = problem_.ranks;
  int chunks_ = problem_.chunks;
  bool quantized_ = !is_high_precision(problem_.sums);
  Offsets cut_values_;  // by rank
  Offsets at_values_;   // by chunk
  plan::Builder b_;
  plan::AxisRef tp_ = b_.axis("tp", problem_.ranks);
  ListRef cut_, at_, ff_, stage_;
  std::vector<ListRef> stage_cuts_;
  plan::Dimension tok_{"tok", problem_.m};
  plan::Dimension ff_dimension_{"ff", problem_.ranks};
  plan::Dimension row_{"row", cut_values_.back()};
  TensorRef x_tensor_, w_tensor_, y_tensor_, z_tensor_;
  BufferRef x_, w_, y_, z_, got_, mine_, total_, out_;
  plan::StreamId net_, reduce_;
  Expr k_, n_;  // local K and N
};

}  // namespace

plan::Plan make_plan(const Choice& choice, const Problem& problem) {
  check_supported(choice);
  check_problem(choice, problem);
  return OverlapBuilder(choice, problem).build();
}

std::string plan_text(const Choice& choice, const Problem& problem) {
  std::string text = plan::to_text(make_plan(choice, problem));
  text.insert(text.find('\n') + 1, fmt::format("# {}; {} x {} by {} x {}\n", to_string(choice),
                                               problem.m, problem.k, problem.k, problem.n));
  return text;
}

}  // namespace shiplap::overlap
