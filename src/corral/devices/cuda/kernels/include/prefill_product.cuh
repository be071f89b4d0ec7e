// What the kernels of a prefill product share: its fields, and what becomes of its sums.
#pragma once
#include "ptx.cuh"
#include "tiles.cuh"

namespace corral {

// y = x · weightsᵀ; x and weights in tiles. The columns of y may go to three places: q, k and v are
// one product.
struct Product {
  const char* x;
  const char* weights;
  const int64_t* count;  // rows of x
  int64_t tiles;         // of a row of x
  int64_t columns;       // of y, one a row of the weights
  int64_t columns_1;     // where the second place begins; `columns` if there is none
  int64_t columns_2;
  char* out;  // F32 rows; BF16 if gated
  char* out_1;
  char* out_2;
  int64_t out_stride;  // bytes of a row; tiles of a row if gated
  int64_t out_stride_1;
  int64_t out_stride_2;
  const float* bias;     // or 0
  const char* residual;  // F32 rows, may be `out`; or 0
  int64_t residual_stride;
  const float* scales;  // of rows of x, where these are F16; else 0
};

enum {
  kPlain = 0,
  kSilu = 1,
  kGelu = 2,
  kSiluRows = 3,
  kGeluRows = 4
};  // gated ones give tiles, or rows

__device__ __forceinline__ float activated(float x, int finish) {
  // x · sigmoid(2 · inner) is x/2 · (1 + tanh(inner))
  const float inner = finish == kSilu || finish == kSiluRows
                          ? 0.5f * x
                          : 0.7978845608f * (x + 0.044715f * x * x * x);
  return x / (1.0f + exp2_approx(-2.885390082f * inner));
}

constexpr int kRowTilesTogether = 16;  // blocks that run at once share tiles of the weights in L2

struct Tile {
  int64_t row_tile, column_tile;
};

// The n-th tile of the result: down groups of row tiles first, then along the columns.
__device__ __forceinline__ Tile tile_of(int64_t n, int64_t row_tiles, int64_t column_tiles) {
  const int64_t group = n / (kRowTilesTogether * column_tiles), first = group * kRowTilesTogether;
  const int64_t rest = n - group * kRowTilesTogether * column_tiles;
  const int64_t height =
      row_tiles - first < kRowTilesTogether ? row_tiles - first : kRowTilesTogether;
  return {first + rest % height, rest / height};
}

// Where a run of columns goes.
struct Place {
  char* out;
  int64_t stride, first, end;
};

__device__ __forceinline__ Place place_of_columns(const Product& f, int64_t column) {
  if (column >= f.columns_2) return {f.out_2, f.out_stride_2, f.columns_2, f.columns};
  if (column >= f.columns_1) return {f.out_1, f.out_stride_1, f.columns_1, f.columns_2};
  return {f.out, f.out_stride, 0, f.columns_1};
}

// Stores the sum of one column of a row.
__device__ __forceinline__ void store_sum(const Product& f, int64_t row, int64_t column,
                                          float sum) {
  if (column >= f.columns) return;
  if (f.scales) sum *= f.scales[row];
  if (f.bias) sum += f.bias[column];
  if (f.residual)
    sum += reinterpret_cast<const float*>(f.residual + row * f.residual_stride)[column];
  const Place place = place_of_columns(f, column);
  reinterpret_cast<float*>(place.out + row * place.stride)[column - place.first] = sum;
}

__device__ __forceinline__ bool is_aligned(const void* p) {
  return reinterpret_cast<uint64_t>(p) % 8 == 0;
}

// Stores what a lane has of a row: pairs of columns, 8 apart. What is added comes in runs of loads,
// since the compiler may not move a load over a store to what could be the same address.
template <int Blocks>
__device__ __forceinline__ void store_row(const Product& f, int64_t row, int64_t first_column,
                                          const float* sums) {
  constexpr int kRun = Blocks < 8 ? Blocks : 8;
  const int pair = threadIdx.x % 4 * 2;
  const Place place = place_of_columns(f, first_column);
  float* to = reinterpret_cast<float*>(place.out + row * place.stride) +
              (first_column - place.first) + pair;
  const float* add =
      reinterpret_cast<const float*>(f.residual + row * f.residual_stride) + first_column + pair;
  const float* bias = f.bias + first_column + pair;
  const bool is_whole = first_column + 8 * Blocks <= place.end && is_aligned(to) &&
                        (!f.residual || is_aligned(add)) && (!f.bias || is_aligned(bias));
  if (!is_whole) {
#pragma unroll
    for (int block = 0; block < Blocks; block++) {
      store_sum(f, row, first_column + 8 * block + pair, sums[4 * block]);
      store_sum(f, row, first_column + 8 * block + pair + 1, sums[4 * block + 1]);
    }
    return;
  }
  const float scale = f.scales ? f.scales[row] : 1.0f;
#pragma unroll
  for (int run = 0; run < Blocks; run += kRun) {
    float2 y[kRun];
#pragma unroll
    for (int i = 0; i < kRun; i++) {
      y[i] = make_float2(0.0f, 0.0f);
      if (f.residual) y[i] = *reinterpret_cast<const float2*>(add + 8 * (run + i));
      if (f.bias) {
        const float2 more = *reinterpret_cast<const float2*>(bias + 8 * (run + i));
        y[i].x += more.x;
        y[i].y += more.y;
      }
    }
#pragma unroll
    for (int i = 0; i < kRun; i++) {
      y[i].x = fmaf(sums[4 * (run + i)], scale, y[i].x);
      y[i].y = fmaf(sums[4 * (run + i) + 1], scale, y[i].y);
      *reinterpret_cast<float2*>(to + 8 * (run + i)) = y[i];
    }
  }
}

// The rows of the weights alternate between 8 of gate and 8 of up; `column` counts those of the
// result. Writes BF16.
template <int Finish>
__device__ __forceinline__ unsigned gated(const float* gate, const float* up) {
  return pair_of(activated(gate[0], Finish) * up[0], activated(gate[1], Finish) * up[1],
                 __nv_bfloat16());
}

// Stores what a lane has of a row of gate and up in turns, as BF16 in tiles. A chunk of 8 columns
// is in four lanes, two columns each: four chunks are exchanged among them, so that each lane
// stores a whole one.
template <int Finish, int Blocks>
__device__ __forceinline__ void store_gated_row(const Product& f, int64_t row, bool is_row,
                                                int64_t first_chunk, const float* sums) {
  const Target target{f.out, f.out_stride};
  const int place = threadIdx.x % 4;
#pragma unroll
  for (int run = 0; run < Blocks / 2; run += 4) {
    constexpr int kChunksAtOnce = Blocks / 2 < 4 ? Blocks / 2 : 4;
    unsigned mine[4] = {}, whole[4];
#pragma unroll
    for (int i = 0; i < kChunksAtOnce; i++)
      mine[i] = gated<Finish>(sums + 8 * (run + i), sums + 8 * (run + i) + 4);
#pragma unroll
    for (int step = 0; step < 4;
         step++) {  // lane p gives its part of chunk p XOR step to that lane
      const int chunk = place ^ step;
      const unsigned given =
          chunk & 2 ? (chunk & 1 ? mine[3] : mine[2]) : (chunk & 1 ? mine[1] : mine[0]);
      const unsigned got = __shfl_xor_sync(0xFFFFFFFFu, given, step);
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (chunk == i) whole[i] = got;
    }
    const int64_t chunk = first_chunk + run + place;
    if (is_row && place < kChunksAtOnce && 2 * kChunk * chunk < f.columns)
      *target.chunk<Finish == kSilu || Finish == kGelu>(row, chunk) =
          make_uint4(whole[0], whole[1], whole[2], whole[3]);
  }
}

// Stores what a warp's 16 rows × 8 · Blocks columns came to: the fragment that mma and wgmma give.
template <int Finish, int Blocks>
__device__ __forceinline__ void store_fragment(const Product& f, int64_t count, int64_t first_row,
                                               int64_t first_column, const float* sums) {
  const int64_t row = first_row + threadIdx.x % 32 / 4;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const bool is_row = row + 8 * half < count;
    if (Finish != kPlain)
      store_gated_row<Finish, Blocks>(f, row + 8 * half, is_row, first_column / 2 / kChunk,
                                      sums + 2 * half);
    else if (is_row && first_column < f.columns)
      store_row<Blocks>(f, row + 8 * half, first_column, sums + 2 * half);
  }
}

}  // namespace corral
