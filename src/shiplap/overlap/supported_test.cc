#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/overlap/overlap.h"

namespace shiplap::overlap {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<Choice> all_choices() {
  std::vector<Choice> all;
  for (const Type type : {Type::none, Type::all_gather, Type::reduce_scatter, Type::all_reduce}) {
    for (const Method method :
         {Method::none, Method::bulk, Method::pipeline, Method::ring_exchange}) {
      for (const bool atomic : {false, true}) all.push_back({type, method, atomic});
    }
  }
  return all;
}

Diagnostic refusal(const Choice& choice) {
  try {
    check_supported(choice);
  } catch (const InputError& error) {
    return error.diagnostics().front();
  }
  return {};
}

TEST(SupportedChoice, IsExactlyThis) {
  std::vector<std::string> supported;
  for (const Choice& choice : all_choices()) {
    if (refusal(choice).code.empty()) supported.push_back(to_string(choice));
  }
  EXPECT_THAT(supported,
              ElementsAre("none, none", "all_gather, none", "all_gather, ring_exchange",
                          "all_gather, ring_exchange, atomic", "reduce_scatter, none",
                          "reduce_scatter, bulk", "reduce_scatter, pipeline",
                          "reduce_scatter, pipeline, atomic", "reduce_scatter, ring_exchange",
                          "reduce_scatter, ring_exchange, atomic", "all_reduce, none",
                          "all_reduce, pipeline", "all_reduce, pipeline, atomic",
                          "all_reduce, ring_exchange", "all_reduce, ring_exchange, atomic"));
}

TEST(SupportedChoice, TheTableHasNothingTwice) {
  std::set<std::string> names;
  std::set<std::string> functions;
  for (const SupportedChoice& supported : supported_choices()) {
    EXPECT_TRUE(names.insert(to_string(supported.choice)).second);
    if (supported.function.empty()) continue;
    EXPECT_TRUE(functions.insert(std::string(supported.function)).second);
  }
  EXPECT_EQ(functions.size(), 7U);  // all that TransformerEngine has
}

TEST(SupportedChoice, ARefusalSaysWhatThereIs) {
  for (const Choice& choice : all_choices()) {
    const Diagnostic diagnostic = refusal(choice);
    if (diagnostic.code.empty()) continue;
    EXPECT_EQ(diagnostic.code, "D800");
    EXPECT_THAT(diagnostic.what, HasSubstr(to_string(choice)));
    EXPECT_FALSE(diagnostic.why.empty());
    EXPECT_FALSE(diagnostic.help.empty());
  }
}

TEST(SupportedChoice, NothingIsGatheredInBulk) {
  const Diagnostic diagnostic = refusal({Type::all_gather, Method::bulk});
  EXPECT_THAT(diagnostic.why, HasSubstr("AllGather with bulk overlap not supported"));
  EXPECT_EQ(diagnostic.help, "for all_gather: ring_exchange | ring_exchange atomic");
}

}  // namespace
}  // namespace shiplap::overlap
