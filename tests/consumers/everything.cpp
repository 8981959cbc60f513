#include <turnwise/turnwise.hpp>

int main() {}
