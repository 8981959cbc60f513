#include <turnwise/core/grouping.hpp>
#include <turnwise/core/version.hpp>

static_assert(__cplusplus >= 202002L && turnwise::version_major == TURNWISE_VERSION_MAJOR);

int main() { return turnwise::grouping{}.groups() == 0 ? 0 : 1; }
