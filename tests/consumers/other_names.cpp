// Names that others use: the macros of a platform's headers, and a namespace called as one of the CUDA toolkit's.
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) < (b) ? (b) : (a))
#define near
#define far
#define small char
#define interface struct
#define OUT
#define IN
#define ERROR 0

namespace cuda {
struct stream {};
int std = 0;
}  // namespace cuda

#include <turnwise/turnwise.hpp>

using namespace turnwise;

int main() { return cuda::std; }
