// Kernels on tensors of any dimensions: how a dimension of what is read comes into what is written.
#include <algorithm>
#include <map>

#include "value_builder.h"

namespace shiplap::oracle {
namespace {

using Sizes = std::vector<std::pair<std::string, int>>;

class Arbitrary {
 public:
  Arbitrary(ValueBuilder& builder, int rank) : b_(builder), rank_(rank) {
    for (const char* name : {"i", "j", "k"}) size_[name] = 2 + static_cast<int>(name[0] == 'i');
  }

  void contraction() {
    const std::vector<std::string> names = some_names(0, 3);
    const auto in_part = static_cast<std::size_t>(b_.upto(0, static_cast<int>(names.size())));
    Declaration out{.name = fresh(), .kind = "Made"};
    for (std::size_t n = 0; n < names.size(); ++n) {
      (n < in_part ? out.part : out.sum).emplace_back(names[n], size_[names[n]]);
      have_[names[n]] = some_of(size_[names[n]]);
    }
    const int count = b_.upto(b_.random.chance(0.1) ? 0 : 1, 2);
    std::vector<Assertion> assertions;
    std::map<std::string, char> how;  // a dimension is read in a part, in a sum
    for (int n = 0; n < count; ++n) read_operand(out, n == 1, assertions, how);
    StatedValue value{.tensor = out.name};
    for (const auto& [name, size] : out.part) {
      const std::vector<int>& all = have_[name];
      const bool slice = all.size() > 1 && b_.random.chance(0.2);
      value.part.push_back({name, slice ? std::vector<int>{all.back()} : all});
    }
    for (const auto& [name, size] : out.sum) {
      std::vector<int> at = how[name] == 's' ? range(0, size) : have_[name];
      if (how[name] == 'p' && b_.is(Fault::claims_less) && at.size() > 1) at.pop_back();
      if (how[name] == 'p' && b_.is(Fault::claims_more)) add_one(at, size);
      value.sum.push_back({name, at});
    }
    if (b_.random.chance(0.2)) value.denominator = 3;
    b_.declare(out);
    finish("made", assertions, value);
  }

  void linear() {
    Declaration in{.name = fresh(), .kind = "Taken"};
    Declaration out{.name = fresh(), .kind = "Made"};
    StatedValue read{.tensor = in.name};
    StatedValue value{.tensor = out.name};
    for (const std::string& name : some_names(1, 3)) {
      const int size = size_[name];
      const bool part = b_.random.chance();
      const int fate = b_.upto(0, 2);  // as it is; into the sum; it ends here
      std::vector<int> at = fate == 2 ? range(0, size) : some_of(size);
      if (fate == 2 && b_.is(Fault::slice_summed)) at.pop_back();
      (part ? in.part : in.sum).emplace_back(name, size);
      (part ? read.part : read.sum).push_back({name, at});
      if (fate == 2) continue;
      const bool stays = (fate == 0 && part) || (!part && b_.is(Fault::takes_sum_apart));
      if (!stays && b_.is(Fault::claims_less) && at.size() > 1) at.pop_back();
      if (!stays && b_.is(Fault::claims_more)) add_one(at, size);
      (stays ? out.part : out.sum).emplace_back(name, size);
      (stays ? value.part : value.sum).push_back({name, at});
    }
    if (b_.is(Fault::unread_dimension)) {
      out.sum.emplace_back("z", 2);
      value.sum.push_back({"z", {0, 1}});
    } else if (b_.random.chance(0.15)) {
      out.part.emplace_back("y", 2);
      value.part.push_back({"y", {0, 1}});
    }
    b_.declare(in);
    b_.declare(out);
    const std::string kernel = b_.random.pick(std::vector<std::string>{"cast", "add", "scale"});
    if (kernel == "scale" || b_.is(Fault::scale_never)) value.denominator = b_.upto(1, 3);
    std::vector<Assertion> assertions;
    operand(read, assertions);
    if (b_.is(Fault::reads_twice) || b_.is(Fault::overlapping_sums))
      assertions.push_back(assertions.back());
    if (b_.is(Fault::reads_nothing)) assertions.clear();
    finish(kernel, assertions, value);
  }

  // Weights in two precisions, of two layers.
  void versions() {
    const std::string full = fresh();
    const std::string half = fresh();
    b_.declare({.name = full, .instances = 2, .kind = "Weight", .part = {{"i", size_["i"]}}});
    b_.declare({.name = half, .instances = 2, .kind = "Weight", .part = {{"i", size_["i"]}}});
    StatedValue read{.tensor = full, .instance = b_.upto(0, 1), .is_new = b_.random.chance()};
    StatedValue value = read;
    value.tensor = half;
    if (b_.random.chance(0.3)) value = read;
    if (b_.is(Fault::other_instance)) {
      value = read;
      value.instance = 1 - read.instance;
    }
    if (b_.is(Fault::old_as_new)) value.is_new = !read.is_new;
    std::vector<Assertion> assertions;
    operand(read, assertions);
    finish(b_.random.chance() ? "cast" : "add", assertions, value);
  }

  // Rows that live for a while.
  void memory() {
    const std::string name = fresh();
    b_.declare({.name = name, .kind = "Kept", .sum = {{"i", size_["i"]}}});
    const BufferRows rows = b_.rows(rank_, 1);
    const BufferRows to = b_.rows(rank_, 1);
    const auto live = [&](const std::string& action) { push({.action = action, .from = rows}); };
    live("allocate");
    if (b_.is(Fault::allocated_twice)) live("allocate");
    b_.compute(rank_, "make", {{"writes", rows, {.tensor = name}}});
    if (b_.is(Fault::freed_early)) live("free");
    b_.copy(rank_, rows, to);
    if (!b_.is(Fault::freed_early) && !b_.is(Fault::not_freed)) live("free");
    if (!b_.is(Fault::not_freed) && b_.random.chance(0.3)) {
      live("allocate");
      live("free");
    }
    b_.fact(rank_, "goal", to, {.tensor = name});
  }

 private:
  void push(Step step) { b_.plan.ranks[rank_].steps.push_back(std::move(step)); }

  std::string fresh() {
    return "T" + std::to_string(b_.plan.tensors.size() + static_cast<std::size_t>(named_++) * 100);
  }

  std::vector<std::string> some_names(int least, int most) {
    std::vector<std::string> names{"i", "j", "k"};
    b_.random.shuffle(names);
    names.resize(b_.upto(least, most));
    return names;
  }

  std::vector<int> some_of(int size) {
    std::vector<int> all;
    for (int k = 0; k < size; ++k) {
      if (b_.random.chance(0.7)) all.push_back(k);
    }
    return all.empty() ? std::vector<int>{0} : all;
  }

  static void add_one(std::vector<int>& at, int size) {
    for (int k = 0; k < size; ++k) {
      if (std::ranges::find(at, k) != at.end()) continue;
      at.push_back(k);
      return;
    }
  }

  // One of what a contraction reads.
  void read_operand(const Declaration& out, bool second, std::vector<Assertion>& assertions,
                    std::map<std::string, char>& how) {
    Declaration in{.name = fresh(), .kind = "Taken"};
    StatedValue read{.tensor = in.name};
    const auto has = [](const Sizes& sizes, const std::string& name) {
      return std::ranges::find(sizes, name, &std::pair<std::string, int>::first) != sizes.end();
    };
    for (const std::string& name : some_names(0, 3)) {
      const bool named = has(out.part, name) || has(out.sum, name);
      std::vector<int> at = named ? have_[name] : range(0, size_[name]);
      if (has(out.sum, name) && second && b_.is(Fault::operand_shape)) at = range(0, size_[name]);
      if (!named && b_.is(Fault::slice_summed)) at.pop_back();
      if (how[name] != 'p' && !has(out.part, name) && b_.random.chance(0.15)) {
        in.sum.emplace_back(name, size_[name]);  // of which all is there
        if (how[name] == 0) how[name] = 's';
        continue;
      }
      if (how[name] == 's' && has(out.sum, name)) at = range(0, size_[name]);
      in.part.emplace_back(name, size_[name]);
      read.part.push_back({name, at});
      if (how[name] != 's') how[name] = 'p';
    }
    b_.declare(in);
    operand(read, assertions);
    if (b_.is(Fault::reads_twice)) assertions.push_back(assertions.back());
  }

  // As many rows as cells, or fewer, or more.
  int rows_for(const StatedValue& value) {
    int cells = 1;
    for (const auto& [name, size] : b_.plan.declaration(value.tensor).part) {
      const auto found = std::ranges::find(value.part, name, &Extent::dimension);
      cells *= found == value.part.end() ? size : static_cast<int>(found->at.size());
    }
    const int way = b_.layouts ? b_.upto(0, 3) : 2;
    if (way == 0) return 1;
    return way == 1 ? 2 * cells : cells;
  }

  // Gives it, and reads it: in one region or in two.
  void operand(const StatedValue& value, std::vector<Assertion>& assertions) {
    std::vector<StatedValue> pieces{value};
    if (!value.part.empty() && value.part[0].at.size() > 1 && b_.pieces && b_.random.chance()) {
      pieces.push_back(value);
      pieces[0].part[0].at = {value.part[0].at[0]};
      pieces[1].part[0].at.erase(pieces[1].part[0].at.begin());
    } else if (!value.sum.empty() && value.sum[0].at.size() > 1 && b_.pieces) {
      pieces.push_back(value);
      pieces[0].sum[0].at = {value.sum[0].at[0]};
      pieces[1].sum[0].at.erase(pieces[1].sum[0].at.begin());
    }
    for (const StatedValue& piece : pieces) {
      const BufferRows rows = b_.rows(rank_, rows_for(piece));
      b_.fact(rank_, "given", rows, piece);
      assertions.push_back({"reads", rows, piece});
    }
  }

  void finish(const std::string& kernel, std::vector<Assertion> assertions,
              const StatedValue& value) {
    const BufferRows rows = b_.rows(rank_, rows_for(value));
    assertions.push_back({"writes", rows, value});
    b_.compute(rank_, kernel, std::move(assertions));
    b_.fact(rank_, "goal", rows, value);
  }

  ValueBuilder& b_;
  int rank_;
  int named_ = 0;
  std::map<std::string, int> size_;
  std::map<std::string, std::vector<int>> have_;  // of the dimensions of what is written
};

}  // namespace

void build_arbitrary(ValueBuilder& builder) {
  for (int rank = 0; rank < builder.ranks(); ++rank) {
    const int count = builder.upto(1, 2);
    for (int k = 0; k < count; ++k) {
      Arbitrary some(builder, rank);
      const int what = builder.upto(0, 9);
      const bool wants_version = builder.is(Fault::other_instance) || builder.is(Fault::old_as_new);
      const bool wants_memory = builder.is(Fault::freed_early) ||
                                builder.is(Fault::allocated_twice) || builder.is(Fault::not_freed);
      if (wants_memory || what == 0) {
        some.memory();
      } else if (wants_version || what == 1) {
        some.versions();
      } else if (what < 6) {
        some.linear();
      } else {
        some.contraction();
      }
    }
  }
  if (!builder.random.chance(0.1)) return;
  builder.declare({.name = "U", .kind = "Any", .sum = {{"u", builder.ranks()}}});
  std::vector<BufferRows> rows;
  for (int rank = 0; rank < builder.ranks(); ++rank) {
    rows.push_back(builder.rows(rank, 1));
    builder.fact(rank, "given", rows.back(), {.tensor = "U", .sum = {{"u", {rank}}}});
  }
  builder.collective("all_reduce", rows, {}, " operator max");  // what it leaves is unknown
  if (!builder.is(Fault::claims_more)) return;
  for (int rank = 0; rank < builder.ranks(); ++rank) {
    builder.fact(rank, "goal", rows[rank], {.tensor = "U"});
  }
}

}  // namespace shiplap::oracle
