// The parts of a linked program that the replay works with.
#pragma once

#include "shiplap/plan/link.h"

namespace shiplap::sim {

using plan::Act;
using plan::GroupCalls;
using plan::LinkedProgram;
using plan::Place;
using plan::RankTemplate;
using plan::Releases;
using plan::Step;

}  // namespace shiplap::sim
