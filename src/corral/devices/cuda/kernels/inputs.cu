// What crosses between the host and the card in a step: inputs from pinned memory, tokens to it.
//
// Reading and writing the host's memory from a kernel takes no turn of the copy engine, which would
// have the card wait on both sides of it.
#include "include/common.cuh"

namespace corral {

constexpr int kMostPieces = 12;
constexpr int kInputThreads = 256;

// Where it begins on both sides, and how long it is, in steps of 16 bytes.
struct Piece {
  int64_t first, count;
};

struct InputsFields {
  const uint4* source;
  uint4* target;
  Piece pieces[kMostPieces];
};

// Block (piece, part of it). The launch behind it begins when it has ended: all kernels read inputs
// before they wait.
__global__ void __launch_bounds__(kInputThreads)
    take_inputs(__grid_constant__ const InputsFields f) {
  wait_for_previous();
  const Piece piece = f.pieces[blockIdx.x];
  const uint4* source = f.source + piece.first;
  uint4* target = f.target + piece.first;
  const int64_t step = static_cast<int64_t>(gridDim.y) * kInputThreads;
  for (int64_t i = blockIdx.y * kInputThreads + threadIdx.x; i < piece.count; i += step) {
    target[i] = __ldcv(source + i);
  }
}

struct TokensFields {
  const int32_t* tokens;
  const int64_t* count;
  int32_t* target;
};

__global__ void __launch_bounds__(kInputThreads)
    give_tokens(__grid_constant__ const TokensFields f) {
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  for (int64_t i = threadIdx.x; i < count; i += kInputThreads) f.target[i] = f.tokens[i];
}

}  // namespace corral
