// The non-linearities of feed-forward blocks.
#pragma once

#include "common.cuh"

namespace corral {

struct SILU {
  static __device__ __forceinline__ float of(float x) { return x / (1.0f + __expf(-x)); }
};

struct GELU {
  static __device__ __forceinline__ float of(float x) {
    const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanhf(inner));
  }
};

}  // namespace corral
