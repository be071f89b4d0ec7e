// Rows of a weight as the file has them → the packed layout of quant/packed.py.
//
// A block has 16 rows and 256 columns. It copies their bytes to shared memory, where a row begins
// at a word of its own, and then each thread puts together whole words of the result. Rows past the
// last are rows of zero bytes.
#include "include/layouts.cuh"

namespace corral {

struct PackFields {
  const unsigned char* source;
  unsigned char* target;
  int64_t rows, columns;
};

constexpr int kPackThreads = 256;
using Bytes = const unsigned char*;

// One block of each type in a file: how its parts are found. `code` is unsigned, as it is packed.
template <int BlockColumns, int BlockBytes>
struct Block {
  static constexpr int kColumns = BlockColumns;
  static constexpr int kBytes = BlockBytes;
  static constexpr int kScaleAt = 0;   // of the F16 scale
  static constexpr int kOffsetAt = 2;  // of the F16 offset
  static constexpr uint16_t kFlip = 0;  // turns what the file subtracts into an offset
};

__device__ __forceinline__ int nibble(Bytes b, int i, int n) {  // planes of n bytes
  return b[i / (2 * n) * n + i % n] >> (i / n % 2 * 4) & 15;
}
__device__ __forceinline__ int pair(Bytes b, int i, int n) {  // planes of n bytes, two bits each
  return b[i / (4 * n) * n + i % n] >> (i / n % 4 * 2) & 3;
}
__device__ __forceinline__ int bit(Bytes b, int i, int n) {
  return b[i / (8 * n) * n + i % n] >> (i / n % 8) & 1;
}

struct Q4_0 : Block<32, 18> {
  using Layout = int4_half;
  static __device__ int code(Bytes b, int i) { return nibble(b + 2, i, 16); }
};
struct Q4_1 : Block<32, 20> {
  using Layout = int4_half_offset;
  static __device__ int code(Bytes b, int i) { return nibble(b + 4, i, 16); }
};
struct Q5_0 : Block<32, 22> {
  using Layout = int5_half;
  static __device__ int code(Bytes b, int i) {
    return nibble(b + 6, i, 16) | (b[2 + i / 8] >> (i % 8) & 1) << 4;
  }
};
struct Q5_1 : Block<32, 24> {
  using Layout = int5_half_offset;
  static __device__ int code(Bytes b, int i) {
    return nibble(b + 8, i, 16) | (b[4 + i / 8] >> (i % 8) & 1) << 4;
  }
};
struct Q8_0 : Block<32, 34> {
  using Layout = int8_half;
  static __device__ int code(Bytes b, int i) { return b[2 + i] ^ 128; }
};
struct IQ4_NL : Block<32, 18> {
  using Layout = iq4_half;
  static __device__ int code(Bytes b, int i) { return nibble(b + 2, i, 16); }
};
struct MXFP4 : Block<32, 17> {
  using Layout = mxfp4_exponent;
  static __device__ int code(Bytes b, int i) { return nibble(b + 1, i, 16); }
  static __device__ int scale(Bytes b, int) { return b[0]; }
};
struct Q2_K : Block<256, 84> {
  using Layout = int4_unsigned16_offset;
  static constexpr int kScaleAt = 80, kOffsetAt = 82;
  static constexpr uint16_t kFlip = 0x8000;
  static __device__ int code(Bytes b, int i) { return pair(b + 16, i, 32); }
  static __device__ int scale(Bytes b, int part) { return b[part] & 15; }
  static __device__ int offset(Bytes b, int part) { return b[part] >> 4; }
};
struct Q3_K : Block<256, 110> {
  using Layout = int4_signed16;
  static constexpr int kScaleAt = 108;
  static __device__ int code(Bytes b, int i) { return pair(b + 32, i, 32) | bit(b, i, 32) << 2; }
  static __device__ int scale(Bytes b, int part) {
    return (nibble(b + 96, part, 8) | pair(b + 104, part, 4) << 4) - 32;
  }
};
// Eight scales and eight minima of 6 bits: the top two bits of the second four stand above the
// first four.
template <int Bytes_>
struct WithMinima : Block<256, Bytes_> {
  static constexpr uint16_t kFlip = 0x8000;
  static __device__ int scale(Bytes b, int part) {
    if (part < 4) return b[4 + part] & 63;
    return (b[8 + part] & 15) | (b[part] >> 2 & 48);
  }
  static __device__ int offset(Bytes b, int part) {
    if (part < 4) return b[8 + part] & 63;
    return b[8 + part] >> 4 | (b[4 + part] >> 2 & 48);
  }
};
struct Q4_K : WithMinima<144> {
  using Layout = int4_unsigned_offset;
  static __device__ int code(Bytes b, int i) { return nibble(b + 16, i, 32); }
};
struct Q5_K : WithMinima<176> {
  using Layout = int5_unsigned_offset;
  static __device__ int code(Bytes b, int i) {
    return nibble(b + 48, i, 32) | bit(b + 16, i, 32) << 4;
  }
};
struct Q6_K : Block<256, 210> {
  using Layout = int6_signed16;
  static constexpr int kScaleAt = 208;
  static __device__ int code(Bytes b, int i) {
    return nibble(b, i, 64) | pair(b + 128, i, 32) << 4;
  }
  static __device__ int scale(Bytes b, int part) { return b[192 + part]; }
};
struct IQ4_XS : Block<256, 136> {
  using Layout = iq4_signed;
  static __device__ int code(Bytes b, int i) { return nibble(b + 8, i, 16); }
  static __device__ int scale(Bytes b, int part) {
    return (nibble(b + 4, part, 1) | pair(b + 2, part, 1) << 4) - 32;
  }
};


// Bytes of one row in shared memory: words, an odd number of them, and one to spare in front.
constexpr int padded_bytes(int bytes) { return ((bytes + 3) / 4 + 1 | 1) * 4; }

// Copies `bytes` bytes of 16 rows; row r begins at `row_begin[r]` in shared memory.
template <int Stride>
__device__ __forceinline__ void fetch_rows(unsigned char* shared, const PackFields& f,
                                           int64_t first_row, int64_t row_bytes, int64_t from,
                                           int bytes) {
  const unsigned char* end = f.source + f.rows * row_bytes;
  constexpr int kWords = Stride / 4;
  for (int i = threadIdx.x; i < kRows * kWords; i += kPackThreads) {
    const int r = i / kWords, w = i % kWords;
    uint32_t word = 0;
    if (first_row + r < f.rows) {
      const unsigned char* begin = f.source + (first_row + r) * row_bytes + from;
      const int skew = static_cast<int>(reinterpret_cast<uint64_t>(begin) & 3);
      const unsigned char* at = begin - skew + 4 * w;
      if (4 * w >= bytes + skew) continue;
      if (at >= f.source && at + 4 <= end) {
        word = __ldg(reinterpret_cast<const uint32_t*>(at));
      } else {
        for (int e = 0; e < 4; e++) {
          if (at + e >= f.source && at + e < end) {
            word |= static_cast<uint32_t>(at[e]) << (8 * e);
          }
        }
      }
    }
    reinterpret_cast<uint32_t*>(shared + r * Stride)[w] = word;
  }
}

// Where row r's bytes begin in shared memory: as far past a word as in the source.
template <int Stride>
__device__ __forceinline__ Bytes shared_row(const unsigned char* shared, const PackFields& f,
                                            int64_t first_row, int64_t row_bytes, int64_t from,
                                            int r) {
  if (first_row + r >= f.rows) return shared + r * Stride;
  const unsigned char* begin = f.source + (first_row + r) * row_bytes + from;
  return shared + r * Stride + (reinterpret_cast<uint64_t>(begin) & 3);
}

__device__ __forceinline__ uint16_t half_at(Bytes b) {
  return static_cast<uint16_t>(b[0] | b[1] << 8);
}

// Byte `at` of a group's scales and offsets, `row` being the row's bytes of this tile.
template <class Type>
__device__ __forceinline__ uint16_t head_value(Bytes row, int group, int which, int part) {
  using Layout = typename Type::Layout;
  Bytes block = row + group * kGroupColumns / Type::kColumns * Type::kBytes;
  if constexpr (Layout::kScales == Scales::Half) {
    return which ? half_at(block + Type::kOffsetAt) : half_at(block + Type::kScaleAt);
  } else {
    const int number = group * Layout::kParts + part;
    if constexpr (Layout::kHasOffset) {
      if (which) return static_cast<uint16_t>(Type::offset(block, number) & 255);
    }
    return static_cast<uint16_t>(Type::scale(block, number) & 255);
  }
}

template <class Type>
__device__ __forceinline__ int code_at(Bytes row, int column) {
  return Type::code(row + column / Type::kColumns * Type::kBytes, column % Type::kColumns);
}

// Word `w` of the codes of one row and one group: chunk w of the planes.
template <class Type>
__device__ __forceinline__ uint32_t codes_word(Bytes row, int group, int w) {
  using Layout = typename Type::Layout;
  const int first = group * kGroupColumns;
  uint32_t word = 0;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    uint32_t byte = 0;
    if constexpr (Layout::kBits == 8) {
      byte = code_at<Type>(row, first + 4 * w + j);
    } else if (w < 4) {
      byte = (code_at<Type>(row, first + 4 * w + j) & 15) |
             (code_at<Type>(row, first + 16 + 4 * w + j) & 15) << 4;
    } else if constexpr (Layout::kBits == 5) {
#pragma unroll
      for (int c = 0; c < 8; c++) {
        byte |= (code_at<Type>(row, first + 4 * c + j) >> 4 & 1) << c;
      }
    } else if constexpr (Layout::kBits == 6) {
#pragma unroll
      for (int c = 0; c < 4; c++) {
        byte |= (code_at<Type>(row, first + 16 * (w - 4) + 4 * c + j) >> 4 & 3) << (2 * c);
      }
    }
    word |= byte << (8 * j);
  }
  return word;
}

// Word `w` of a group: scales and offsets of 16 rows, then chunks of codes.
template <class Type, int Stride, class Row>
__device__ __forceinline__ uint32_t group_word(Row row, int group, int w) {
  using Layout = typename Type::Layout;
  constexpr int kHeadWords = Layout::kHeadBytes / 4;
  if (w >= kHeadWords) {
    return codes_word<Type>(row((w - kHeadWords) % kRows), group, (w - kHeadWords) / kRows);
  }
  constexpr int kEach = 4 / Layout::kScaleBytes;  // values of a word
  constexpr int kPartWords = kRows / kEach;
  const int which = w / (kPartWords * Layout::kParts), part = w / kPartWords % Layout::kParts;
  const int first = w % kPartWords * kEach;
  uint32_t word = 0;
#pragma unroll
  for (int e = 0; e < kEach; e++) {
    word |= static_cast<uint32_t>(head_value<Type>(row(first + e), group, which, part))
            << (8 * Layout::kScaleBytes * e);
  }
  return word;
}

// Block (row block, 256 columns).
template <class Type>
__global__ void __launch_bounds__(kPackThreads) pack(__grid_constant__ const PackFields f) {
  using Layout = typename Type::Layout;
  constexpr int kTileBytes = kSpanColumns / Type::kColumns * Type::kBytes;
  constexpr int kStride = padded_bytes(kTileBytes);
  __shared__ __align__(16) unsigned char shared[kRows * kStride];
  launch_dependents();
  wait_for_previous();
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t first_column = static_cast<int64_t>(blockIdx.y) * kSpanColumns;
  const int64_t row_bytes = f.columns / Type::kColumns * Type::kBytes;
  const int64_t from = first_column / Type::kColumns * Type::kBytes;
  const int64_t left = f.columns - first_column;
  const int columns = left < kSpanColumns ? static_cast<int>(left) : kSpanColumns;
  fetch_rows<kStride>(shared, f, first_row, row_bytes, from,
                      columns / Type::kColumns * Type::kBytes);
  __syncthreads();
  const auto row = [&](int r) {
    return shared_row<kStride>(shared, f, first_row, row_bytes, from, r);
  };
  unsigned char* block = f.target + blockIdx.x * Layout::row_block_bytes(f.columns);
  const int64_t first_group = first_column / kGroupColumns;
  unsigned char* tile = const_cast<unsigned char*>(
      Layout::kHasSpans ? Layout::span(block, first_group) : Layout::group(block, first_group));
  uint32_t* out = reinterpret_cast<uint32_t*>(tile);
  constexpr int kSuperWords = Layout::kSuperBytes / 4, kGroupWords = Layout::kGroupBytes / 4;
  const int words = kSuperWords + columns / kGroupColumns * kGroupWords;
  for (int w = threadIdx.x; w < words; w += kPackThreads) {
    if (w < kSuperWords) {
      const int which = w / (kRows / 2), first = w % (kRows / 2) * 2;
      const int at = which ? Type::kOffsetAt : Type::kScaleAt;
      const uint16_t flip = which ? Type::kFlip : 0;
      const uint32_t low = half_at(row(first) + at) ^ flip;
      out[w] = low | static_cast<uint32_t>(half_at(row(first + 1) + at) ^ flip) << 16;
    } else {
      const int inner = w - kSuperWords;
      out[w] = group_word<Type, kStride>(row, inner / kGroupWords, inner % kGroupWords);
    }
  }
}

// Float weights: column after column, 16 rows each. Block (row block, 64 columns).
template <class Element>
__global__ void __launch_bounds__(kPackThreads) pack_floats(__grid_constant__ const PackFields f) {
  constexpr int kColumns = 64;
  __shared__ Element shared[kRows][kColumns + 4 / sizeof(Element)];
  launch_dependents();
  wait_for_previous();
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t first_column = static_cast<int64_t>(blockIdx.y) * kColumns;
  const Element* source = reinterpret_cast<const Element*>(f.source);
  for (int i = threadIdx.x; i < kRows * kColumns; i += kPackThreads) {
    const int64_t r = first_row + i / kColumns, c = first_column + i % kColumns;
    Element value = 0;
    if (r < f.rows && c < f.columns) value = source[r * f.columns + c];
    shared[i / kColumns][i % kColumns] = value;
  }
  __syncthreads();
  Element* target = reinterpret_cast<Element*>(f.target) +
                    (blockIdx.x * f.columns + first_column) * static_cast<int64_t>(kRows);
  for (int i = threadIdx.x; i < kRows * kColumns; i += kPackThreads) {
    if (first_column + i / kRows < f.columns) target[i] = shared[i % kRows][i / kRows];
  }
}

}  // namespace corral
