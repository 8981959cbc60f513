// A macro that no standard header will undefine.
#include <cstddef>

#define min(a, b) ((a) < (b) ? (a) : (b))
#include <turnwise/core/config.hpp>

int main() {}
