#include "law.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "contents.h"

namespace shiplap::oracle {
namespace {

using plan::DimensionId;
using plan::RankProgram;
using plan::flat::Access;
using plan::flat::Operation;
using plan::flat::Value;

// One operand of a kernel: its kind, how many layers further on it is, whether it may be missing.
struct Operand {
  std::string kind;
  std::int64_t offset = 0;
  bool optional = false;
};
struct Signature {
  std::vector<Operand> reads;
  std::vector<Operand> writes;
};

const std::map<std::string, Signature>& signatures() {
  static const std::map<std::string, Signature> all{
      {"forward", {{{"Activation", 0}, {"Weight", 0}}, {{"Activation", 1}}}},
      {"loss", {{{"Activation", 0}}, {{"ActivationGrad", 0}}}},
      {"backward",
       {{{"Activation", 0}, {"ActivationGrad", 1}, {"Weight", 0}},
        {{"ActivationGrad", 0, true}, {"WeightGrad", 0, true}}}},
      {"update",
       {{{"WeightGrad", 0}, {"Weight", 0}, {"OptState", 0, true}},
        {{"Weight", 0}, {"OptState", 0, true}}}}};
  return all;
}

class Law {
 public:
  Law(const RankProgram& program, const Operation& op)
      : program_(program), kernel_(std::get<plan::Compute>(op.source->action).kernel) {
    for (const Access& access : program.accesses_of(op)) {
      const bool read = access.kind == plan::Access::Kind::reads;
      (read ? reads_ : writes_).push_back(access.value);
    }
  }

  [[nodiscard]] bool holds() const {
    if (kernel_ == "other") return true;
    if (!has_signature() || !reads_complete_sums() || !keeps_sums()) return false;
    for (const Value& write : writes_) {
      for (const Value& read : reads_) {
        if (!covers(read, write)) return false;
      }
    }
    return kernel_ != "update" || is_update();
  }

 private:
  [[nodiscard]] const plan::Tensor& tensor(const Value& value) const {
    return program_.plan->tensors[value.tensor.index()];
  }

  [[nodiscard]] bool fits(const std::vector<Operand>& operands, const std::vector<Value>& values,
                          std::set<std::int64_t>& layers) const {
    std::size_t placed = 0;
    for (const Operand& operand : operands) {
      std::size_t here = 0;
      for (const Value& value : values) {
        if (tensor(value).kind != operand.kind) continue;
        ++here;
        if (tensor(value).instances > 0) layers.insert(value.instance - operand.offset);
      }
      if (here == 0 && !operand.optional) return false;
      placed += here;
    }
    return placed == values.size();
  }

  [[nodiscard]] bool has_signature() const {
    const auto found = signatures().find(kernel_);
    if (found == signatures().end()) return true;
    std::set<std::int64_t> layers;
    if (!fits(found->second.reads, reads_, layers)) return false;
    if (!fits(found->second.writes, writes_, layers)) return false;
    return layers.size() <= 1 || kernel_ == "update";
  }

  [[nodiscard]] bool reads_complete_sums() const {
    static const std::set<std::string> linear{"zero", "add", "scale", "cast"};
    if (linear.contains(kernel_)) return true;
    return std::ranges::all_of(reads_,
                               [&](const Value& read) { return is_complete(program_, read); });
  }

  // `zero` leaves zero; `add`, `cast` and `scale` leave contributions that they read, of a sum that
  // ends with them all of it, and only `scale` another scale.
  [[nodiscard]] bool keeps_sums() const {
    if (kernel_ == "zero") {
      return std::ranges::all_of(writes_, [](const Value& write) { return write.zero; });
    }
    if (kernel_ != "add" && kernel_ != "cast" && kernel_ != "scale") return true;
    for (const Value& write : writes_) {
      std::map<std::string, std::set<std::int64_t>> had;
      for (const Value& read : reads_) {
        const bool same = read.tensor == write.tensor && !read.zero;
        if (kernel_ != "scale" && same && read.scale != write.scale) return false;
        for (std::size_t k = tensor(read).part.size(); k < tensor(read).dimensions(); ++k) {
          const std::string& name = tensor(read).dimension(DimensionId(k)).name;
          const auto set = coordinates(program_, read, DimensionId(k));
          had[name].insert(set.begin(), set.end());
          if (!has_dimension(write, name) && !is_complete(program_, read)) return false;
        }
      }
      for (std::size_t k = tensor(write).part.size(); k < tensor(write).dimensions(); ++k) {
        const std::string& name = tensor(write).dimension(DimensionId(k)).name;
        if (!had.contains(name)) continue;
        for (const std::int64_t c : coordinates(program_, write, DimensionId(k))) {
          if (!had[name].contains(c)) return false;
        }
      }
    }
    return true;
  }

  [[nodiscard]] bool has_dimension(const Value& value, const std::string& name) const {
    for (std::size_t k = 0; k < tensor(value).dimensions(); ++k) {
      if (tensor(value).dimension(DimensionId(k)).name == name) return true;
    }
    return false;
  }

  // A dimension of the read's part is in the write, and the read has what the write has; or it is
  // not, and the read has it whole.
  [[nodiscard]] bool covers(const Value& read, const Value& write) const {
    for (std::size_t k = 0; k < tensor(read).part.size(); ++k) {
      const plan::Dimension& dimension = tensor(read).part[k];
      std::set<std::int64_t> wanted;
      for (std::int64_t c = 0; c < dimension.size; ++c) wanted.insert(c);
      for (std::size_t j = 0; j < tensor(write).dimensions(); ++j) {
        if (tensor(write).dimension(DimensionId(j)).name != dimension.name) continue;
        const auto set = coordinates(program_, write, DimensionId(j));
        wanted = {set.begin(), set.end()};
      }
      const auto had = coordinates(program_, read, DimensionId(k));
      for (const std::int64_t c : had) wanted.erase(c);
      if (!wanted.empty()) return false;
    }
    return true;
  }

  [[nodiscard]] bool is_update() const {
    for (const Value& read : reads_) {
      if (read.scale != tensor(read).scale) return false;
    }
    return std::ranges::all_of(writes_, [&](const Value& write) {
      if (tensor(write).kind != plan::kWeight) return true;
      return write.is_new && std::ranges::any_of(reads_, [&](const Value& read) {
               return read.tensor == write.tensor && read.instance == write.instance &&
                      !read.is_new;
             });
    });
  }

  const RankProgram& program_;
  const std::string& kernel_;
  std::vector<Value> reads_;
  std::vector<Value> writes_;
};

}  // namespace

bool law_holds(const RankProgram& program, const Operation& op) { return Law(program, op).holds(); }

}  // namespace shiplap::oracle
