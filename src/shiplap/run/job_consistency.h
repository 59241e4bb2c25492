// Checks that all ranks run the same job. A plan that was checked is no guarantee if some ranks
// have another one: a stale file on one machine, other flags, another seed or another version.
#pragma once

#include <string>
#include <vector>

#include "shiplap/comm/communicator.h"
#include "shiplap/plan/plan.h"

namespace shiplap::run {

// A setting that must be equal on all ranks: {"--seed", "1"}.
struct JobSetting {
  std::string name;
  std::string value;  // may have many lines
};
[[nodiscard]] JobSetting plan_setting(const plan::Plan& plan);
// A hash of the plan's canonical text, 16 hexadecimal digits.
[[nodiscard]] std::string fingerprint(const plan::Plan& plan);

// Collective over `world`. Compares the settings and the version of Shiplap. Sends hashes, and
// values only if they differ. On a mismatch throws InputError D644 on all ranks, with the ranks
// that differ from the majority (if tied, from the first ranks), their value and that of the
// others. `world` stays usable.
void check_job_consistency(comm::Communicator& world, std::vector<JobSetting> settings);

}  // namespace shiplap::run
