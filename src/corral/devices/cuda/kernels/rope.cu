// Rotations by position, and heads turned by them.
#include "include/common.cuh"

namespace corral {

struct RotationsFields {
  const int32_t* positions;
  const int64_t* count;
  const double* frequencies;
  const float* factors;
  float* out;
  int64_t out_stride, pairs;
  Float magnitude;
};

// Cosines, then sines. Whole turns are taken off in F64, for positions are large; the rest is
// F32.
template <bool HasFactors>
__global__ void __launch_bounds__(128) rotations(__grid_constant__ const RotationsFields f) {
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  if (blockIdx.x >= count) return;
  float* out = row_at(f.out, f.out_stride, blockIdx.x);
  const double position = f.positions[blockIdx.x];
  for (int64_t i = threadIdx.x; i < f.pairs; i += blockDim.x) {
    double step = f.frequencies[i];
    if constexpr (HasFactors) step /= static_cast<double>(f.factors[i]);
    const double turns = position * step * 0.15915494309189535;
    float sine, cosine;
    sincospif(2.0f * static_cast<float>(turns - rint(turns)), &sine, &cosine);
    out[i] = cosine * f.magnitude.value;
    out[f.pairs + i] = sine * f.magnitude.value;
  }
}

struct RopeFields {
  const float* x;
  const int64_t* count;
  float* out;
  int64_t x_stride, out_stride;
  const float* rotations;
  int64_t rotations_stride, heads;
};

// A thread a pair of dimensions; those behind the turned ones pass, two at a time.
template <int HeadDim, int Turned, bool AreNeighbours>
__global__ void __launch_bounds__(256) rope(__grid_constant__ const RopeFields f) {
  constexpr int kHalf = Turned / 2;
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  if (blockIdx.x >= count) return;
  const int64_t number = static_cast<int64_t>(blockIdx.y) * 256 + threadIdx.x;
  const int64_t head = number / (HeadDim / 2);
  const int pair = number % (HeadDim / 2);
  if (head >= f.heads) return;
  const float* x = row_at(f.x, f.x_stride, blockIdx.x) + head * HeadDim;
  float* out = row_at(f.out, f.out_stride, blockIdx.x) + head * HeadDim;
  if (pair >= kHalf) {
    const int first = 2 * pair;
    const float a = x[first], b = x[first + 1];
    out[first] = a, out[first + 1] = b;
    return;
  }
  const float* turns = row_at(f.rotations, f.rotations_stride, blockIdx.x);
  const float cosine = turns[pair], sine = turns[kHalf + pair];
  const int one = AreNeighbours ? 2 * pair : pair;
  const int two = AreNeighbours ? 2 * pair + 1 : pair + kHalf;
  const float a = x[one], b = x[two];
  out[one] = a * cosine - b * sine;
  out[two] = b * cosine + a * sine;
}

}  // namespace corral
