// Stands for an old copy of the CUDA core libraries.
#pragma once
#define CUB_VERSION 200200
