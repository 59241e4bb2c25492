#include "shiplap/report/hardware.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace shiplap::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(const std::string& name) {
  const Json file = parse_json(hardware::system_file(name), name);
  return hardware_text(hardware::find_system(name), file, {});
}

TEST(HardwareText, ShowsTheNodeItsNetworksAndTheBasisOfEachFigure) {
  const std::string text = text_of("h100");
  EXPECT_THAT(text, HasSubstr("[0] [1] [2] [3] [4] [5] [6] [7] devices"));
  EXPECT_THAT(text, HasSubstr("450 GB/s per device, 8 devices in a domain"));
  EXPECT_THAT(text, HasSubstr("8 adapters per node: 8 rails"));
  EXPECT_THAT(text, HasSubstr("leaf switch of each rail: 32 nodes"));
  EXPECT_THAT(text, HasSubstr("networks[0].bandwidth"));
  EXPECT_THAT(text, Not(HasSubstr("not stated")));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), 100U) << line;
}

TEST(HardwareText, ShowsADomainOfSeveralNodes) {
  EXPECT_THAT(text_of("gb200"), HasSubstr("18 nodes"));
}

TEST(HardwareText, OfAFileInCalculonsFormatStatesNoBasis) {
  const hardware::System system = hardware::find_system("tests/hardware/mi300x.json");
  const std::string text =
      hardware_text(system, Json::object({{"networks", Json::array({Json(), Json()})}}), {});
  EXPECT_THAT(text, HasSubstr("not stated"));
  EXPECT_THAT(text, Not(HasSubstr("all-reduce of 1 GiB")));
}

}  // namespace
}  // namespace shiplap::report
