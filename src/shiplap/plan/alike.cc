// The second witness of symmetry.
//
// find_symmetry() proves from the text of a plan that ranks are alike. Here some of them are
// expanded and compared, template by template.
#include <utility>
#include <vector>

#include "shiplap/base/cancellation.h"
#include "shiplap/plan/alike_internal.h"
#include "shiplap/plan/rank_template_internal.h"

namespace shiplap::plan {
namespace {

class AlikeRanks {
 public:
  AlikeRanks(const RankProgram& representative, const RankTemplate& steps,
             const LinkOptions& options)
      : here_(representative), steps_(steps), options_(options), symmetry_(options.symmetry) {}

  void compare() {
    const std::vector<Image> images = images_of(symmetry_);
    stay_among_representatives();
    for (std::size_t k = 0; k < images.size(); ++k) {
      if (is_alike(images[k].shift)) continue;
      throw k < symmetry_.axes.size() ? Asymmetric(symmetry_.axes[k]) : Asymmetric();
    }
  }

 private:
  // Messages between representatives stand for those between the ranks that they represent. A root
  // has other data than the rest of its group, so the group may not span an axis of symmetry.
  void stay_among_representatives() const {
    for (const flat::Operation& op : here_.operations) {
      if (op.peer.exists() && !symmetry_.is_representative(op.peer.value)) throw Asymmetric();
      const auto* collective = std::get_if<Collective>(&op.source->action);
      if (collective == nullptr || !has_root(collective->kind)) continue;
      const RankSet& group = here_.groups[op.group].ranks;
      for (std::size_t axis = 0; axis < symmetry_.axes.size(); ++axis) {
        if (symmetry_.is_spanned(axis, group)) throw Asymmetric(symmetry_.axes[axis]);
      }
    }
  }

  [[nodiscard]] bool is_alike(std::int64_t shift) {
    const Rank rank(static_cast<std::int32_t>(here_.rank.value + shift));
    there_ = expand(*here_.plan, rank, here_.program, {}, std::move(there_));
    if (there_.program != here_.program) return false;
    if (!template_of(there_, options_).same_steps(steps_)) return false;
    for (std::size_t k = 0; k < here_.operations.size(); ++k) {
      throw_if_cancelled();
      const flat::Operation& a = here_.operations[k];
      const flat::Operation& b = there_.operations[k];
      if (a.tag != b.tag || a.group != b.group || a.root != b.root) return false;
      if (a.peer.exists() && b.peer.value != a.peer.value + shift) return false;
    }
    return true;
  }

  const RankProgram& here_;
  const RankTemplate& steps_;
  const LinkOptions& options_;
  const Symmetry& symmetry_;
  RankProgram there_;
};

}  // namespace

void throw_if_unlike(const RankProgram& representative, const RankTemplate& steps,
                     const LinkOptions& options) {
  if (representative.program.exists()) AlikeRanks(representative, steps, options).compare();
}

}  // namespace shiplap::plan
