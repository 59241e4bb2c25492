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
  for (const Kind kind : {Kind::copy, Kind::exchange, Kind::send, Kind::load_weights}) {
    EXPECT_THROW((void)collective_of(kind), InternalError) << name(kind);
  }
}

TEST(EventKind, KernelsOfTrainingHaveOneAndOthersAreComputations) {
  for (const Kind kind : {Kind::load_weights, Kind::forward, Kind::backward, Kind::backward_input,
                          Kind::backward_weight, Kind::loss, Kind::update}) {
    EXPECT_EQ(kind_of_kernel(name(kind)), kind);
  }
  for (const char* const kernel : {"", "gemm", "send", "all_reduce"}) {
    EXPECT_EQ(kind_of_kernel(kernel), Kind::compute) << kernel;
  }
}

}  // namespace
}  // namespace shiplap::trace
