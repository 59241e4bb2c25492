// Do all ranks run the same thing? What was proved of one plan says nothing of a job in which some
// ranks have another: a stale file on one machine, other flags, another seed or another version.
#pragma once

#include <string>
#include <vector>

#include "shiplap/comm/communicator.h"
#include "shiplap/plan/plan.h"

namespace shiplap::run {

// What all ranks have in common: {"--seed", "1"}.
struct JobFact {
  std::string name;
  std::string value;  // may be long, and have many lines
};
[[nodiscard]] JobFact plan_fact(const plan::Plan& plan);
// 16 hexadecimal digits, the same for plans that say the same in the same order.
[[nodiscard]] std::string fingerprint(const plan::Plan& plan);

// All ranks of `world` together, each with what it was given; that they are of one version of
// Shiplap is compared as well. Hashes are sent, and values only where they differ. Throws
// InputError D644 on all ranks if they do: it names the ranks that are not as most are (of equally
// many, not as the first ones), what they have, and what the others have. `world` can be used after
// that.
void require_same_job(comm::Communicator& world, std::vector<JobFact> facts);

}  // namespace shiplap::run
