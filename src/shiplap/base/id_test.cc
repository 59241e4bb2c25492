#include "shiplap/base/id.h"

#include <gtest/gtest.h>

#include <type_traits>

namespace shiplap {
namespace {

using BufferId = Id<struct BufferTag>;

TEST(Id, OfOneKindIsNotOfAnother) {
  static_assert(!std::is_convertible_v<BufferId, Rank>);
  static_assert(!std::is_constructible_v<BufferId, Rank>);
  static_assert(!std::is_convertible_v<int, Rank>);
  static_assert(!std::equality_comparable_with<BufferId, Rank>);
}

TEST(Id, ExistsOnceItHasANumber) {
  static_assert(!Rank().exists());
  static_assert(Rank(0).exists());
  static_assert(Rank() < Rank(0));
}

TEST(Id, IsItsIndex) {
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(Rank(i).index(), i);
    EXPECT_EQ(Rank(i), Rank(static_cast<std::int32_t>(i)));
    EXPECT_LT(Rank(i), Rank(i + 1));
  }
}

}  // namespace
}  // namespace shiplap
