#include <turnwise/turnwise.hpp>

int main() { return turnwise::version_major == TURNWISE_VERSION_MAJOR ? 0 : 1; }
