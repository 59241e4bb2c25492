// Every plan is one program for all ranks. The rows of rank p are those from cut[p] on; they are
// cut into chunks, of which chunk c = p*S + u has the rows from at[c] on. Empty chunks are there as
// well: an empty message costs little, and all ranks agree on it.
//
// Where parts of sums travel as FP8 with their scales ("coded"), nothing can be added on the way:
// owners get all parts of their rows and add them up in f32.
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

// What operations are called.
const OperationName kProduct{"p"};
const OperationName kTile{"t"};
const OperationName kOwnTile{"o"};
const OperationName kSent{"s"};
const OperationName kReceived{"r"};
const OperationName kGot{"g"};
const OperationName kSum{"e"};
const OperationName kGathered{"q"};
const OperationName kArrived{"b"};
const OperationName kSpread{"f"};

class OverlapBuilder {
 public:
  OverlapBuilder(const Choice& choice, const Problem& problem)
      : choice_(choice),
        problem_(problem),
        cut_values_(rank_cuts(choice, problem)),
        at_values_(chunk_cuts(choice, problem)) {}

  plan::Plan build() && {
    const bool gathers = choice_.type == Type::all_gather;
    cut_ = b_.list("cut", cut_values_);
    at_ = b_.list("at", at_values_);
    ff_ = b_.list("ff", cuts_of(gathers ? problem_.columns : problem_.depth, ranks_));
    gathers ? gathered() : summed();
    return std::move(b_).build();
  }

 private:
  [[nodiscard]] bool scatters() const { return choice_.type == Type::reduce_scatter; }
  [[nodiscard]] bool is(Method method) const { return choice_.method == method; }

  // The columns of what is summed: in bulk it may be another matrix than the product.
  [[nodiscard]] std::int64_t summed_columns() const {
    const bool beside = is(Method::bulk) && problem_.bulk_columns != 0;
    return beside ? problem_.bulk_columns : problem_.columns;
  }

  // ---- declarations

  // Numbers of `type`, one after the other.
  BufferRef buffer(const char* name, Expr rows, const Expr& width, DType type) {
    return b_.buffer({name, std::move(rows), bytes_of(type) * width, type});
  }
  // Numbers of the problem's type unless the form has a scale; `more` bytes behind each row.
  BufferRef buffer(const char* name, Expr rows, const Expr& width, const Form& form,
                   std::int64_t more = 0) {
    Expr bytes = form.scaling == Scaling::none  ? bytes_of(problem_.type) * width
                 : form.scaling == Scaling::row ? width + 4
                                                : width + div(width + 31, 32);
    const DType type = is_plain(form) ? problem_.type : form.type;
    return b_.buffer({name, std::move(rows), more == 0 ? bytes : bytes + more, type});
  }

  // Chunk i of a pipeline is chunk i of every rank. They lie together in y: that of rank p from
  // stage[i*P + p] on.
  void stage_lists() {
    Cuts stage{0};
    for (int i = 0; i < chunks_; ++i) {
      Cuts within{0};
      for (int p = 0; p < ranks_; ++p) {
        const std::size_t c = at(p * chunks_ + i);
        within.push_back(within.back() + at_values_[c + 1] - at_values_[c]);
        stage.push_back(stage.back() + at_values_[c + 1] - at_values_[c]);
      }
      stage_cuts_.push_back(b_.list(fmt::format("cut{}", i), std::move(within)));
    }
    stage_ = b_.list("stage", std::move(stage));
  }

  [[nodiscard]] Expr own_rows() const { return cut_.size(tp_); }
  [[nodiscard]] Expr own_share() const { return ff_.size(tp_); }

  TensorRef tensor(const char* name, const char* kind, std::vector<plan::Dimension> part,
                   std::vector<plan::Dimension> sum = {}) {
    return b_.tensor({.name = name, .kind = kind, .part = std::move(part), .sum = std::move(sum)});
  }

  // ---- what operations are made of

  // What it costs to multiply so many rows. Every tile reads all of the weights.
  [[nodiscard]] Work product_of(const Expr& rows) const {
    const std::int64_t wide = bytes_of(problem_.type);
    const std::int64_t x = bytes_in(problem_.x, problem_.type);
    const std::int64_t w = bytes_in(problem_.w, problem_.type) * std::max(1, problem_.groups);
    Work work{.kernel_class = "gemm",
              .flop = 2 * rows * inner_ * wide_,
              .bytes = x == wide && w == wide
                           ? wide * (rows * (inner_ + wide_) + inner_ * wide_)
                           : rows * (x * inner_ + wide * wide_) + w * inner_ * wide_};
    if (!is_plain(problem_.x) && !is_plain(problem_.w)) work.type = problem_.x.type;
    return work;
  }
  // To take n rows of numbers of so many bytes over into f32, to add them to others there, or to
  // round those.
  [[nodiscard]] Work conversion(const Expr& n, bool adds, std::int64_t bytes) const {
    const Expr columns = is(Method::bulk) ? Expr(summed_columns()) : wide_;
    return {.kernel_class = "vector",
            .flop = adds ? n * wide_ : 0,
            .bytes = n * columns * (bytes + (adds ? 8 : 4))};
  }
  [[nodiscard]] Work conversion(const Expr& n, bool adds) const {
    return conversion(n, adds, bytes_in(problem_.sums, problem_.type));
  }

  // Chunk c of a matrix of tokens.
  [[nodiscard]] TensorRef tokens(const TensorRef& of, const Expr& c) const {
    return of(tok_, at_[c], at_.size(c));
  }
  [[nodiscard]] TensorRef own_tokens(const TensorRef& of) const {
    return of(tok_, cut_[tp_], own_rows());
  }
  [[nodiscard]] TensorRef all_tokens(const TensorRef& of) const {
    return of(tok_, 0, problem_.rows);
  }
  // What rank `p` adds to a sum, or its share of other matrices.
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
            .work = product_of(rows)});
  }
  // The product in one piece, of which this rank has all factors.
  void whole_product(Reference name = {}) {
    multiply(std::move(name), problem_.rows, reads(x_, of_this(all_tokens(x_tensor_))),
             writes(y_, of_this(y_tensor_)));
  }
  // Chunk c of it, into these rows.
  void tile(Reference name, const Expr& c, Region into) {
    multiply(std::move(name), at_.size(c), reads(x_.cut(c, at_), of_this(tokens(x_tensor_, c))),
             writes(std::move(into), of_this(tokens(y_tensor_, c))));
  }
  // On the stream for sums: writes what it reads to other rows or, if the work says so, adds it.
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
  // A message that goes on beside what follows.
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

  // For each of so many steps, or distances of ranks.
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
    // A row that is multiplied by the weights of its group says which that is.
    const std::int64_t more = problem_.groups == 0 ? 0 : kGroupBytes;
    x_ = buffer("x", problem_.rows, problem_.depth, problem_.x, more);
    w_ = buffer("w", problem_.groups == 0 ? own_share() : problem_.groups * own_share(),
                problem_.depth, problem_.w);
    y_ = buffer("y", problem_.rows, own_share(), problem_.type);
    net_ = b_.stream("net");
    inner_ = b_.let("inner", problem_.depth);
    wide_ = b_.let("wide", own_share());
    b_.given(x_.cut(tp_, cut_), own_tokens(x_tensor_));
    b_.given(w_, of_this(w_tensor_));
    b_.goal(x_, x_tensor_);
    b_.goal(y_, of_this(all_tokens(y_tensor_)));
    if (!is(Method::none)) return ring();
    collective({}, CollectiveKind::all_gather, x_, x_, cut_);
    multiply({}, problem_.rows, reads(x_, x_tensor_), writes(y_, of_this(all_tokens(y_tensor_))));
  }

  // Chunks go to the next rank, each as soon as it is there; what arrives is multiplied.
  void ring() {
    each_chunk_of("s", ranks_ - 1, [&](const Expr& s, const Expr& u) {
      const Expr c = let_chunk(mod(tp_ - s - 1, ranks_), u);
      post(kReceived(s + 1, u), plan::Receive{x_.cut(c, at_), tp_.wrap(-1), u});
    });
    each_chunk_of("s", ranks_ - 1, [&](const Expr& s, const Expr& u) {
      const Expr c = let_chunk(mod(tp_ - s, ranks_), u);
      post(kSent(s, u), plan::Send{x_.cut(c, at_), tp_.wrap(1), u}, {kReceived(s, u)});
    });
    // Its own rows are there, all of them.
    multiply({}, own_rows(), reads(x_.cut(tp_, cut_), own_tokens(x_tensor_)),
             writes(y_.cut(tp_, cut_), of_this(own_tokens(y_tensor_))));
    each_chunk_of("s", ranks_ - 1, [&](const Expr& s, const Expr& u) {
      const Expr c = let_chunk(mod(tp_ - s - 1, ranks_), u);
      multiply({}, at_.size(c), reads(x_.cut(c, at_), tokens(x_tensor_, c)),
               writes(y_.cut(c, at_), of_this(tokens(y_tensor_, c))), {kReceived(s + 1, u)});
    });
  }

  // ---- Y is summed

  void summed() {
    if (is(Method::pipeline) && (scatters() || coded_)) stage_lists();
    x_tensor_ = tensor("X", "Activation", {tok_, ff_dimension_});
    w_tensor_ = tensor("W", plan::kWeight, {ff_dimension_});
    y_tensor_ = tensor("Y", "Activation", {tok_}, {ff_dimension_});
    if (is(Method::bulk)) z_tensor_ = tensor("Z", "Activation", {row_}, {ff_dimension_});
    b_.program("all");
    x_ = buffer("x", problem_.rows, own_share(), problem_.x);
    w_ = buffer("w", problem_.columns * std::max(1, problem_.groups), own_share(), problem_.w);
    coded_ ? coded_buffers() : plain_buffers();
    net_ = b_.stream("net");
    if (coded_ || is(Method::ring_exchange)) reduce_ = b_.stream("reduce");
    inner_ = b_.let("inner", own_share());
    wide_ = b_.let("wide", problem_.columns);
    b_.given(x_, of_this(all_tokens(x_tensor_)));
    b_.given(w_, of_this(w_tensor_));
    switch (choice_.method) {
      case Method::none:
        return coded_ ? coded_one_by_one() : one_by_one();
      case Method::bulk:
        return bulk();
      case Method::pipeline:
        return coded_ ? coded_pipeline() : scatters() ? pipeline() : reduce_chunks();
      case Method::ring_exchange:
        return direct();
    }
  }

  void plain_buffers() {
    y_ = buffer("y", problem_.rows, problem_.columns, problem_.type);
    if (scatters()) out_ = buffer("out", own_rows(), summed_columns(), problem_.type);
    if (is(Method::bulk)) z_ = buffer("z", cut_values_.back(), summed_columns(), problem_.type);
    if (!is(Method::ring_exchange)) return;
    got_ = buffer("got", (ranks_ - 1) * own_rows(), problem_.columns, problem_.type);
    total_ = buffer("total", own_rows(), problem_.columns, DType::f32);
  }

  void coded_buffers() {
    const std::int64_t columns = summed_columns();
    const bool is_direct = is(Method::ring_exchange);
    if (is(Method::bulk)) {
      y_ = buffer("y", problem_.rows, problem_.columns, problem_.type);
      z_ = buffer("z", cut_values_.back(), columns, problem_.sums);
    } else {
      y_ = buffer("y", problem_.rows, columns, problem_.sums);
    }
    got_ = buffer("got", (is_direct ? ranks_ - 1 : ranks_) * own_rows(), columns, problem_.sums);
    if (is_direct) mine_ = buffer("mine", own_rows(), columns, DType::f32);
    total_ = buffer("total", own_rows(), columns, DType::f32);
    out_ =
        buffer("out", scatters() ? own_rows() : Expr(cut_values_.back()), columns, problem_.type);
  }

  void goal() {
    if (scatters()) {
      b_.goal(out_, own_tokens(y_tensor_));
    } else if (choice_.type == Type::all_reduce) {
      b_.goal(coded_ ? out_ : y_, y_tensor_);
    } else {
      b_.goal(y_, of_this(y_tensor_));
    }
  }

  void one_by_one() {
    goal();
    whole_product();
    if (scatters()) collective({}, CollectiveKind::reduce_scatter, y_, out_, cut_);
    if (choice_.type == Type::all_reduce) collective({}, CollectiveKind::all_reduce, y_, y_);
  }

  void coded_one_by_one() {
    goal();
    whole_product(kProduct());
    collective({.name = kReceived(), .stream = net_, .after = {kProduct()}},
               CollectiveKind::all_to_all, y_, got_, cut_);
    const Expr u = b_.let("u", 0);
    const OwnChunk own = let_all_own();
    add_turned(own, {kReceived()});
    if (scatters()) return close_own(own, u, out_);
    close_own(own, u, y_.cut(tp_, cut_));
    collective({.name = kGot(), .stream = net_, .after = {kSum(0)}}, CollectiveKind::all_gather, y_,
               y_, cut_);
    convert(
        y_, out_, y_tensor_,
        {.kernel_class = "vector", .bytes = problem_.rows * wide_ * (1 + bytes_of(problem_.type))},
        {kGot()});
  }

  void bulk() {
    b_.goal(out_, z_tensor_(row_, cut_[tp_], own_rows()));
    b_.goal(y_, of_this(y_tensor_));
    b_.given(z_, of_this(z_tensor_));
    if (!coded_) {
      collective({.stream = net_, .async = true}, CollectiveKind::reduce_scatter, z_, out_, cut_);
      return whole_product();
    }
    collective({.name = kReceived(), .stream = net_}, CollectiveKind::all_to_all, z_, got_, cut_);
    whole_product();
    const OwnChunk own = let_all_own();
    add_turned(own, {kReceived()});
    close_own(own, 0, out_);
  }

  void stage_tiles() {
    b_.repeat("i", chunks_, [&](const Expr& i) {
      b_.repeat("p", ranks_, [&](const Expr& p) {
        const Expr c = let_chunk(p, i);
        tile(kTile(i, p), c, y_.cut(i * ranks_ + p, stage_));
      });
    });
  }
  // Chunk i of all ranks, and that of this rank among its own rows.
  [[nodiscard]] Region staged(int i) const {
    const int first = i * ranks_;
    return y_(stage_[first], stage_[first + ranks_] - stage_[first]);
  }
  [[nodiscard]] Expr own_chunk(int i) const { return tp_ * chunks_ + i; }

  void pipeline() {
    goal();
    stage_tiles();
    for (int i = 0; i < chunks_; ++i) {
      const Expr c = own_chunk(i);
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

  // What is turned of chunk i is followed by that of chunk i+1 before the sums of chunk i are
  // gathered, so that nothing waits for sums that are still made.
  void coded_pipeline() {
    goal();
    stage_tiles();
    for (int i = 0; i < chunks_ + 2; ++i) {
      if (i < chunks_) turn(i);
      if (i >= 1 && i <= chunks_) sum_turned(i - 1);
      if (i >= 2 && !scatters()) decode_gathered(i - 2);
    }
  }
  void turn(int i) {
    const Expr c = own_chunk(i);
    collective({.name = kReceived(i), .stream = net_, .after = {kTile(i, ranks_ - 1)}},
               CollectiveKind::all_to_all, staged(i),
               got_(ranks_ * (at_[c] - cut_[tp_]), ranks_ * at_.size(c)), stage_cuts_[at(i)]);
  }
  void sum_turned(int i) {
    b_.repeat("v", 1, [&](const Expr& v) {
      const Expr u = b_.let("u", v + i);
      const OwnChunk own = let_own_chunk(u);
      add_turned(own, {kReceived(u)});
      close_own(own, u, scatters() ? out_(own.i, own.n) : y_.cut(u * ranks_ + tp_, stage_));
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

  // Rows i .. i+n of what this rank owns are those of Y (or of what is scattered in bulk) from
  // `first` on.
  struct OwnChunk {
    Expr c, first, n, i;
  };
  OwnChunk let_own_chunk(const Expr& u) {
    OwnChunk own;
    own.c = let_chunk(tp_, u);
    own.first = coded_ ? b_.let("first", at_[own.c]) : at_[own.c];
    own.n = b_.let("n", at_.size(own.c));
    own.i = b_.let("i", at_[own.c] - cut_[tp_]);
    return own;
  }
  OwnChunk let_all_own() {
    OwnChunk own;
    own.first = b_.let("first", cut_[tp_]);
    own.n = b_.let("n", own_rows());
    own.i = b_.let("i", 0);
    return own;
  }
  [[nodiscard]] TensorRef part(const OwnChunk& own) const {
    return is(Method::bulk) ? z_tensor_(row_, own.first, own.n) : y_tensor_(tok_, own.first, own.n);
  }
  [[nodiscard]] Region total(const OwnChunk& own) const { return total_(own.i, own.n); }

  // Parts of all ranks, which lie one behind the other, in the order of ranks.
  void add_turned(const OwnChunk& own, const After& after) {
    for (int p = 0; p < ranks_; ++p) {
      convert(got_(ranks_ * own.i + p * own.n, own.n), total(own), of_rank(part(own), p),
              conversion(own.n, p > 0), p == 0 ? after : After());
    }
  }
  // The sums of own rows, rounded.
  void close_own(const OwnChunk& own, const Expr& u, Region into) {
    const bool named = !coded_ || choice_.type == Type::all_reduce;
    convert(total(own), std::move(into), part(own), conversion(own.n, false), {},
            named ? kSum(u) : Reference());
  }
  // Rows of all_reduce as everybody gets them, the owner as well.
  void decode(const Expr& c, Region from, const TensorRef& what, const Expr& n, After after) {
    convert(std::move(from), out_.cut(c, at_), what, conversion(n, false), std::move(after));
  }

  // What others own is multiplied first and sent to them; what this rank owns is never coded. What
  // arrives is added in one order.
  void direct() {
    goal();
    const Expr own_count = b_.let("own", own_rows());
    each_chunk_of("d", ranks_ - 1, [&](const Expr& d, const Expr& u) {
      const auto rows = [&] {
        if (coded_) {
          const OwnChunk own = let_own_chunk(u);
          return got_(d * own_count + own.i, own.n);
        }
        const Expr c = let_chunk(tp_, u);
        return got_(d * own_count + at_[c] - cut_[tp_], at_.size(c));
      };
      const Region into = rows();
      post(kGot(d, u), plan::Receive{into, tp_.wrap(-(d + 1)), u});
    });
    each_chunk_of("d", coded_ ? ranks_ - 1 : ranks_, [&](const Expr& d, const Expr& u) {
      const Expr c = let_chunk_of_next(d, u);
      tile(kTile(d, u), c, y_.cut(c, at_));
    });
    if (coded_) {
      b_.repeat("u", chunks_, [&](const Expr& u) {
        const OwnChunk own = let_own_chunk(u);
        tile(kOwnTile(u), own.c, mine_(own.i, own.n));
      });
    }
    each_chunk_of("d", ranks_ - 1, [&](const Expr& d, const Expr& u) {
      const Expr c = let_chunk_of_next(d, u);
      post(kSent(d, u), plan::Send{y_.cut(c, at_), tp_.wrap(d + 1), u}, {kTile(d, u)});
    });
    reduce(own_count);
    if (choice_.type == Type::all_reduce) spread();
  }
  // First what has arrived, in the order in which it does, then what this rank has made, which is
  // ready last.
  void reduce(const Expr& own_count) {
    for (int d = 0; d + 1 < ranks_; ++d) {
      b_.repeat("u", chunks_, [&](const Expr& u) {
        const OwnChunk own = let_own_chunk(u);
        convert(got_(d * own_count + own.i, own.n), total(own),
                of_rank(part(own), mod(tp_ - (d + 1), ranks_)), conversion(own.n, d > 0),
                {kGot(d, u)});
      });
    }
    b_.repeat("u", chunks_, [&](const Expr& u) {
      const OwnChunk own = let_own_chunk(u);
      const bool adds = ranks_ > 1;
      convert(coded_ ? mine_(own.i, own.n) : y_.cut(own.c, at_), total(own), of_this(part(own)),
              coded_ ? conversion(own.n, adds, bytes_of(DType::f32)) : conversion(own.n, adds),
              {coded_ ? kOwnTile(u) : kTile(ranks_ - 1, u)});
      close_own(own, u, scatters() ? out_(own.i, own.n) : y_.cut(own.c, at_));
      if (coded_ && !scatters()) decode(own.c, y_.cut(own.c, at_), part(own), own.n, {});
    });
  }
  // The sums of own rows go to everybody; what was sent from the rows of others has left by then.
  void spread() {
    each_chunk_of("d", ranks_ - 1, [&](const Expr& d, const Expr& u) {
      const Expr c = let_chunk_of_next(d, u);
      post(kArrived(d, u), plan::Receive{y_.cut(c, at_), tp_.wrap(d + 1), chunks_ + u},
           {kSent(d, u)});
    });
    b_.repeat("u", chunks_, [&](const Expr& u) {
      b_.repeat("d", ranks_ - 1, [&](const Expr& d) {
        const Expr c = let_chunk(tp_, u);
        post(kSpread(d, u), plan::Send{y_.cut(c, at_), tp_.wrap(-(d + 1)), chunks_ + u}, {kSum(u)});
      });
    });
    if (!coded_) return;
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
  bool coded_ = !is_plain(problem_.sums);
  Cuts cut_values_;  // by rank
  Cuts at_values_;   // by chunk
  plan::Builder b_;
  plan::AxisRef tp_ = b_.axis("tp", problem_.ranks);
  ListRef cut_, at_, ff_, stage_;
  std::vector<ListRef> stage_cuts_;
  plan::Dimension tok_{"tok", problem_.rows};
  plan::Dimension ff_dimension_{"ff", problem_.ranks};
  plan::Dimension row_{"row", cut_values_.back()};
  TensorRef x_tensor_, w_tensor_, y_tensor_, z_tensor_;
  BufferRef x_, w_, y_, z_, got_, mine_, total_, out_;
  plan::StreamId net_, reduce_;
  Expr inner_, wide_;  // of this rank: columns of X, and of W
};

}  // namespace

plan::Plan make_plan(const Choice& choice, const Problem& problem) {
  demand_legal(choice);
  check_problem(choice, problem);
  return OverlapBuilder(choice, problem).build();
}

std::string plan_text(const Choice& choice, const Problem& problem) {
  std::string text = plan::to_text(make_plan(choice, problem));
  text.insert(text.find('\n') + 1,
              fmt::format("# {}; {} x {} by {} x {}\n", to_string(choice), problem.rows,
                          problem.depth, problem.depth, problem.columns));
  return text;
}

}  // namespace shiplap::overlap
