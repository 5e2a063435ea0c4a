// SPDX-License-Identifier: Apache-2.0
#include "emulator/memory/tensor_map.h"

#include <fmt/format.h>

#include <cstring>

namespace flashjit::emulator {
namespace {

constexpr std::uint64_t kMagic = 0x70616d726f736e74;  // "tnsormap"
constexpr std::uint64_t kAddressUnit = 16;
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 32;
constexpr std::uint64_t kStrideEnd = std::uint64_t{1} << 40;
constexpr std::uint32_t kMostOfBox = 256, kMostElementStride = 8;

// The bytes of a TensorMap.
struct Encoded {
  std::uint64_t magic, address;
  std::uint64_t sizes[kMostDimensions], byte_strides[kMostDimensions - 1];
  std::uint16_t box[kMostDimensions];
  std::uint8_t element_strides[kMostDimensions], rank;
  TensorElement element;
  TensorSwizzle swizzle;
  TensorFill fill;
};
static_assert(sizeof(Encoded) <= sizeof(TensorMap));

bool is_floating(TensorElement element) { return element >= TensorElement::f16; }

// Of a row of the pattern; 0 when there is none.
std::uint32_t span_of(TensorSwizzle mode) { return mode == TensorSwizzle::none ? 0 : 16u << static_cast<int>(mode); }

template <class Value>
void require(bool holds, const std::string& field, const std::string& what, Value was) {
  if (!holds) throw std::invalid_argument(fmt::format("tensor map: {} must be {}, was {}", field, what, was));
}

void check_dimension(const TensorMapDescription& map, std::size_t i) {
  require(map.sizes[i] >= 1 && map.sizes[i] <= kMostElements, fmt::format("sizes[{}]", i),
          fmt::format("from 1 to {}", kMostElements), map.sizes[i]);
  require(map.box[i] >= 1 && map.box[i] <= kMostOfBox, fmt::format("box[{}]", i),
          fmt::format("from 1 to {}", kMostOfBox), map.box[i]);
  require(map.element_strides[i] >= 1 && map.element_strides[i] <= kMostElementStride,
          fmt::format("element_strides[{}]", i), fmt::format("from 1 to {}", kMostElementStride),
          map.element_strides[i]);
  if (i == 0) return;
  const std::uint64_t stride = map.byte_strides[i - 1];
  require(stride % kAddressUnit == 0 && stride < kStrideEnd, fmt::format("byte_strides[{}]", i - 1),
          fmt::format("a multiple of {} below {}", kAddressUnit, kStrideEnd), stride);
}

// What cuTensorMapEncodeTiled asks for.
void check(const TensorMapDescription& map) {
  require(map.rank >= 1 && map.rank <= kMostDimensions, "rank", fmt::format("from 1 to {}", kMostDimensions), map.rank);
  const auto address = reinterpret_cast<std::uintptr_t>(map.address);
  require(address != 0 && address % kAddressUnit == 0, "address", fmt::format("a multiple of {}", kAddressUnit),
          fmt::format("{:#x}", address));
  for (int i = 0; i < map.rank; ++i) check_dimension(map, static_cast<std::size_t>(i));
  const std::uint32_t row = map.box[0] * bytes_of(map.element), span = span_of(map.swizzle);
  require(row % kAddressUnit == 0, "box[0]", fmt::format("a multiple of {} bytes", kAddressUnit), row);
  require(span == 0 || row <= span, "box[0]", fmt::format("at most the {} bytes of the swizzle", span), row);
  require(map.fill == TensorFill::zeros || is_floating(map.element), "fill",
          "zeros for elements that are not floating-point", "nan");
}

}  // namespace

std::uint32_t bytes_of(TensorElement element) {
  switch (element) {
    case TensorElement::u8:
      return 1;
    case TensorElement::u16:
    case TensorElement::f16:
    case TensorElement::bf16:
      return 2;
    case TensorElement::u32:
    case TensorElement::s32:
    case TensorElement::f32:
      return 4;
    case TensorElement::u64:
    case TensorElement::s64:
    case TensorElement::f64:
      break;
  }
  return 8;
}

TensorMap encode_tensor_map(const TensorMapDescription& description) {
  check(description);
  Encoded encoded = {};
  encoded.magic = kMagic;
  encoded.address = reinterpret_cast<std::uintptr_t>(description.address);
  encoded.rank = static_cast<std::uint8_t>(description.rank);
  for (std::size_t i = 0; i < static_cast<std::size_t>(description.rank); ++i) {
    encoded.sizes[i] = description.sizes[i];
    encoded.box[i] = static_cast<std::uint16_t>(description.box[i]);
    // Along the first dimension hardware takes every element.
    encoded.element_strides[i] = static_cast<std::uint8_t>(i == 0 ? 1 : description.element_strides[i]);
    if (i > 0) encoded.byte_strides[i - 1] = description.byte_strides[i - 1];
  }
  encoded.element = description.element;
  encoded.swizzle = description.swizzle;
  encoded.fill = description.fill;
  TensorMap map;
  std::memcpy(map.words, &encoded, sizeof(encoded));
  return map;
}

std::optional<TensorMapDescription> decode_tensor_map(const std::byte* bytes) {
  Encoded encoded;
  std::memcpy(&encoded, bytes, sizeof(encoded));
  if (encoded.magic != kMagic) return std::nullopt;
  TensorMapDescription map;
  map.address = reinterpret_cast<void*>(static_cast<std::uintptr_t>(encoded.address));
  map.rank = encoded.rank;
  std::copy_n(encoded.sizes, kMostDimensions, map.sizes.begin());
  std::copy_n(encoded.byte_strides, kMostDimensions - 1, map.byte_strides.begin());
  std::copy_n(encoded.box, kMostDimensions, map.box.begin());
  std::copy_n(encoded.element_strides, kMostDimensions, map.element_strides.begin());
  map.element = encoded.element;
  map.swizzle = encoded.swizzle;
  map.fill = encoded.fill;
  return map;
}

std::uint32_t swizzle(TensorSwizzle mode, std::uint32_t address) {
  const std::uint32_t span = span_of(mode);
  return span == 0 ? address : address ^ ((address >> 7 & (span / 16 - 1)) << 4);
}

namespace {

struct Range {
  std::int64_t begin = 0, end = 0;
};
Range intersect(Range a, Range b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

}  // namespace

CopyBox box_at(const TensorMapDescription& map, const std::array<std::int32_t, kMostDimensions>& coordinates) {
  const std::size_t rank = static_cast<std::size_t>(map.rank);
  const std::uint32_t element = bytes_of(map.element);
  CopyBox box;
  box.swizzle = map.swizzle;
  box.element = map.element;
  box.fill = map.fill;
  box.row_bytes = map.box[0] * element;
  box.row_pitch = std::max(box.row_bytes, span_of(map.swizzle));
  // Along the other dimensions the box counts steps of one element; those between the element strides are left out.
  std::array<std::uint32_t, kMostDimensions> counts{1, 1, 1, 1, 1};
  std::uint32_t rows = 1;
  for (std::size_t i = 1; i < rank; ++i)
    rows *= counts[i] = (map.box[i] + map.element_strides[i] - 1) / map.element_strides[i];
  box.bytes = rows * box.row_bytes;
  box.shared_bytes = rows * box.row_pitch;

  const std::int64_t first = coordinates[0];
  const Range inside = intersect({first, first + map.box[0]}, {0, static_cast<std::int64_t>(map.sizes[0])});
  if (inside.begin >= inside.end) return box;
  for (std::uint32_t row = 0; row < rows; ++row) {
    std::uint64_t offset = static_cast<std::uint64_t>(inside.begin) * element;
    bool exists = true;
    for (std::size_t i = 1, rest = row; i < rank; rest /= counts[i], ++i) {
      const std::int64_t at = coordinates[i] + static_cast<std::int64_t>(rest % counts[i] * map.element_strides[i]);
      exists = exists && at >= 0 && at < static_cast<std::int64_t>(map.sizes[i]);
      offset += static_cast<std::uint64_t>(at) * map.byte_strides[i - 1];
    }
    if (!exists) continue;
    const auto skipped = static_cast<std::uint32_t>(inside.begin - first) * element;
    box.rows.push_back({row * box.row_pitch + skipped, static_cast<std::uint32_t>(inside.end - inside.begin) * element,
                        static_cast<std::byte*>(map.address) + offset});
  }
  return box;
}

// The NaN is not documented; an H200 writes this for elements of every size.
void fill(TensorFill mode, std::byte* at, std::uint32_t bytes) {
  constexpr std::byte kNan[] = {std::byte{0xf7}, std::byte{0x7f}};
  for (std::uint32_t i = 0; i < bytes; ++i) at[i] = mode == TensorFill::nan ? kNan[i % sizeof(kNan)] : std::byte{0};
}

}  // namespace flashjit::emulator
