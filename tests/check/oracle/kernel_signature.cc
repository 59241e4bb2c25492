// Which operands the kernels of a training step have.
//
// These kernels compute one layer of the reference network with the weights of the last step: so
// they read the old version, activations and weights at the scale at which the plan declares them,
// and a loss is taken of the last activation. A kernel whose name is not here may read anything.
#include <algorithm>
#include <map>
#include <set>

#include "kernels.h"

namespace shiplap::oracle {
namespace {

using plan::flat::Access;
using plan::flat::Value;

// Its kind, how many layers further on it is, whether it may be missing.
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
      {"backward_input",
       {{{"ActivationGrad", 1}, {"Weight", 0}, {"Activation", 0, true}}, {{"ActivationGrad", 0}}}},
      {"backward_weight",
       {{{"Activation", 0}, {"ActivationGrad", 1}, {"Weight", 0, true}}, {{"WeightGrad", 0}}}},
      {"update",
       {{{"WeightGrad", 0}, {"Weight", 0}, {"OptState", 0, true}},
        {{"Weight", 0}, {"OptState", 0, true}}}}};
  return all;
}

class SignatureCheck {
 public:
  SignatureCheck(const Execution& run, const Signature& signature, Rules& rules)
      : run_(run), signature_(signature), rules_(rules) {
    for (const ReadTensor& read : run.reads) {
      reads_.insert(reads_.end(), read.values.begin(), read.values.end());
    }
    for (const Access* write : run.writes) writes_.push_back(&write->value);
  }

  void check() {
    fits(signature_.reads, reads_);
    fits(signature_.writes, writes_);
    if (run_.kernel == "update") return check_update();
    std::set<std::int64_t> layers;
    for (const auto& [kind, some] : layers_) layers.insert(some.begin(), some.end());
    rules_.require("signature: one layer", layers.size() <= 1);
    for (const Value* read : reads_) {
      rules_.require("signature: weights of the version before", !read->is_new);
      if (run_.kernel != "loss") continue;
      const std::int64_t instances = tensor(*read).instances;
      rules_.require("signature: loss of the last activation",
                     instances == 0 || read->instance == instances - 1);
    }
  }

 private:
  [[nodiscard]] const plan::Tensor& tensor(const Value& value) const { return run_.tensor(value); }

  void fits(const std::vector<Operand>& operands, const std::vector<const Value*>& values) {
    std::size_t placed = 0;
    for (const Operand& operand : operands) {
      std::size_t here = 0;
      for (const Value* value : values) {
        if (tensor(*value).kind != operand.kind) continue;
        ++here;
        if (tensor(*value).instances > 0) {
          layers_[operand.kind].insert(value->instance - operand.offset);
        }
      }
      rules_.require("signature: operands of its kinds", here > 0 || operand.optional);
      placed += here;
    }
    rules_.require("signature: operands of its kinds", placed == values.size());
  }

  // An update may take several layers at once; of each, all that it is computed from.
  void check_update() {
    for (const auto& [kind, layers] : layers_) {
      rules_.require("signature: an update of the layers of its gradients",
                     layers == layers_.begin()->second);
    }
    for (const Value* write : writes_) {
      const bool read = std::ranges::any_of(reads_, [&](const Value* it) {
        return it->tensor == write->tensor && it->instance == write->instance && !it->is_new;
      });
      rules_.require("signature: an update makes the next version", write->is_new && read);
    }
  }

  const Execution& run_;
  const Signature& signature_;
  Rules& rules_;
  std::vector<const Value*> reads_;
  std::vector<const Value*> writes_;
  std::map<std::string, std::set<std::int64_t>> layers_;  // by kind
};

void check_scales(const Execution& run, Rules& rules) {
  for (const ReadTensor& read : run.reads) {
    const std::string& kind = read.tensor->kind;
    const bool declared =
        run.kernel == "update" || kind == "Activation" || kind == "Weight" || kind == "OptState";
    if (!declared) continue;
    for (const auto& [part, sum] : read.cells) {
      for (const auto& [contribution, coefficient] : sum) {
        rules.require("scale: read as declared", coefficient == Rational(read.tensor->scale));
      }
    }
  }
}

}  // namespace

void check_signature(const Execution& run, Rules& rules) {
  const auto found = signatures().find(run.kernel);
  if (found == signatures().end()) return;
  SignatureCheck(run, found->second, rules).check();
  check_scales(run, rules);
}

}  // namespace shiplap::oracle
