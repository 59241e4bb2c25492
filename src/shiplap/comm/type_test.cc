#include "shiplap/comm/type.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace shiplap::comm {
namespace {

template <class T>
std::vector<T> combined(ReduceOp reduction, const std::vector<T>& left,
                        const std::vector<T>& right) {
  std::vector<T> into(left.size());
  combine(reduction, TypeOf<T>::kType, reinterpret_cast<std::byte*>(into.data()),
          reinterpret_cast<const std::byte*>(left.data()),
          reinterpret_cast<const std::byte*>(right.data()), left.size());
  return into;
}

template <class T>
class TypeTest : public testing::Test {};
using Types = testing::Types<std::uint8_t, std::int32_t, std::int64_t, float, double>;
TYPED_TEST_SUITE(TypeTest, Types);

TYPED_TEST(TypeTest, SizesAreThoseOfTheLanguage) {
  EXPECT_EQ(bytes_of(TypeOf<TypeParam>::kType), sizeof(TypeParam));
}

TYPED_TEST(TypeTest, CombinesElementByElement) {
  const std::vector<TypeParam> left{1, 20, 3};
  const std::vector<TypeParam> right{10, 2, 3};
  EXPECT_EQ(combined(ReduceOp::sum, left, right), (std::vector<TypeParam>{11, 22, 6}));
  EXPECT_EQ(combined(ReduceOp::max, left, right), (std::vector<TypeParam>{10, 20, 3}));
  EXPECT_EQ(combined(ReduceOp::min, left, right), (std::vector<TypeParam>{1, 2, 3}));
}

TYPED_TEST(TypeTest, MayCombineInPlaceOnEitherSide) {
  for (const bool left_side : {true, false}) {
    std::vector<TypeParam> mine(101, TypeParam{2});
    const std::vector<TypeParam> other(101, TypeParam{5});
    auto* const into = reinterpret_cast<std::byte*>(mine.data());
    const auto* const from = reinterpret_cast<const std::byte*>(other.data());
    combine(ReduceOp::sum, TypeOf<TypeParam>::kType, into, left_side ? into : from,
            left_side ? from : into, mine.size());
    EXPECT_EQ(mine, std::vector<TypeParam>(101, TypeParam{7}));
  }
}

TEST(Type, IntegersWrapAround) {
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(combined<std::int32_t>(ReduceOp::sum, {kMax}, {1}),
            std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::min()});
  EXPECT_EQ(combined<std::uint8_t>(ReduceOp::sum, {250}, {10}), std::vector<std::uint8_t>{4});
}

TEST(Type, NamesAreThoseOfPlans) {
  EXPECT_EQ(name(DType::f32), "f32");
  EXPECT_EQ(name(DType::u8), "u8");
  EXPECT_EQ(name(ReduceOp::max), "max");
}

}  // namespace
}  // namespace shiplap::comm
