#include "shiplap/trace/event.h"

#include <gtest/gtest.h>

#include "shiplap/base/error.h"

namespace shiplap::trace {
namespace {

TEST(EventKind, CollectivesKeepTheirNamesBothWays) {
  for (int k = 0; k <= static_cast<int>(CollectiveKind::barrier); ++k) {
    const auto collective = static_cast<CollectiveKind>(k);
    EXPECT_EQ(name(kind_of(collective)), shiplap::name(collective));
    EXPECT_EQ(collective_of(kind_of(collective)), collective);
  }
  for (const EventKind kind :
       {EventKind::copy, EventKind::exchange, EventKind::send, EventKind::load_weights}) {
    EXPECT_THROW((void)collective_of(kind), InternalError) << name(kind);
  }
}

TEST(EventKind, KernelsOfTrainingHaveOneAndOthersAreComputations) {
  for (const EventKind kind :
       {EventKind::load_weights, EventKind::forward, EventKind::backward, EventKind::backward_input,
        EventKind::backward_weight, EventKind::loss, EventKind::update}) {
    EXPECT_EQ(kind_of_kernel(name(kind)), kind);
  }
  for (const char* const kernel : {"", "gemm", "send", "all_reduce"}) {
    EXPECT_EQ(kind_of_kernel(kernel), EventKind::compute) << kernel;
  }
}

}  // namespace
}  // namespace shiplap::trace
