// What NCCL's RAS (the output of `ncclras`) says of a hung job.
#pragma once

#include "shiplap/dump/job.h"
#include "shiplap/postmortem/postmortem.h"

namespace shiplap::postmortem {

// The answer without dumps. REQUIRES: there are reports of RAS.
[[nodiscard]] Postmortem diagnose_ras(const dump::JobDump& job, const Options& options);

// Adds what RAS knows of the suspects of the dumps: whether their processes are alive, where they
// run, and whether they are behind. Ranks are attached only if they are certain to be the same.
// REQUIRES: there are reports of RAS.
void add_ras_evidence(const dump::JobDump& job, Postmortem& found);

}  // namespace shiplap::postmortem
