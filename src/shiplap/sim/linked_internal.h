// Names of plan/link.h that the replay uses.
#pragma once

#include "shiplap/plan/link.h"

namespace shiplap::sim {

using plan::ActionKind;
using plan::GroupCalls;
using plan::LinkedProgram;
using plan::OperationId;
using plan::OperationState;
using plan::RankTemplate;
using plan::Releases;
using plan::Step;

}  // namespace shiplap::sim
