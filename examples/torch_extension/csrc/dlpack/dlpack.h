// turnwise/interop/dlpack.hpp asks for <dlpack/dlpack.h>; PyTorch brings it under another name.
#include <ATen/dlpack.h>
