// SPDX-License-Identifier: Apache-2.0
// Copies by tensor maps in the emulator: what they move, against plain loops, faults in them, and the encoding of maps.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>

#include "tests/support/source_kernel.h"

namespace {

using namespace flashjit;
using emulator::encode_tensor_map;
using emulator::FindingKind;
using emulator::Memory;
using emulator::TensorElement;
using emulator::TensorFill;
using emulator::TensorMap;
using emulator::TensorMapDescription;
using emulator::TensorSwizzle;
using test::Buffer;
using test::Bytes;
using test::expect;
using test::initialise;
using test::kCommitBulk;
using test::kWaitBulk;
using test::Runs;
using test::SmallKernel;
using test::wait;

int bytes_of(TensorElement element) {
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
    default:
      return 8;
  }
}

// A tensor with some bytes between its rows, and a box of it.
struct TensorCase {
  TensorMapDescription map;
  std::array<std::int32_t, 5> at{};
  int shared_offset = 1024;
  std::ptrdiff_t before = 0;  // bytes from the map's address to the memory

  int element() const { return bytes_of(map.element); }
  std::size_t tensor_bytes() const {
    const auto rank = static_cast<std::size_t>(map.rank);
    return rank == 1 ? map.sizes[0] * static_cast<std::size_t>(element())
                     : map.byte_strides[rank - 2] * map.sizes[rank - 1];
  }
  std::uint32_t count(std::size_t i) const {
    return i == 0 ? map.box[0] : (map.box[i] + map.element_strides[i] - 1) / map.element_strides[i];
  }
  std::size_t row_bytes() const { return std::size_t{map.box[0]} * static_cast<std::size_t>(element()); }
  // Between the beginnings of two rows in shared memory.
  std::size_t row_pitch() const {
    const bool is_swizzled = map.swizzle != TensorSwizzle::none;
    return std::max(row_bytes(), is_swizzled ? std::size_t{16} << static_cast<int>(map.swizzle) : 0);
  }
  std::size_t rows() const {
    std::size_t rows = 1;
    for (std::size_t i = 1; i < static_cast<std::size_t>(map.rank); ++i) rows *= count(i);
    return rows;
  }
  std::size_t box_bytes() const { return rows() * row_bytes(); }
  std::size_t shared_bytes() const { return rows() * row_pitch(); }
  // Calls f(offset in shared memory, offset in the tensor or -1) for each element of the box.
  template <class F>
  void for_each_element(const F& f) const {
    const std::size_t size = static_cast<std::size_t>(element());
    for (std::size_t i = 0; i < box_bytes() / size; ++i) {
      std::ptrdiff_t from = 0;
      bool inside = true;
      for (std::size_t d = 0, rest = i; d < static_cast<std::size_t>(map.rank); rest /= count(d), ++d) {
        const std::int64_t step = d == 0 ? 1 : map.element_strides[d];
        const std::int64_t x = at[d] + static_cast<std::int64_t>(rest % count(d)) * step;
        inside = inside && x >= 0 && x < static_cast<std::int64_t>(map.sizes[d]);
        from += x * static_cast<std::int64_t>(d == 0 ? size : map.byte_strides[d - 1]);
      }
      f(place(i * size / row_bytes() * row_pitch() + i * size % row_bytes()), inside ? from : -1);
    }
  }
  // Units of 16 bytes trade places: those of a row of 128 bytes, by the number of the row.
  std::size_t place(std::size_t offset) const {
    const std::size_t begin = static_cast<std::size_t>(shared_offset) + offset;
    const std::size_t row = begin / 128 % 8, unit = begin / 16 % 8;
    std::size_t other = unit;
    if (map.swizzle == TensorSwizzle::bytes_128) other = unit ^ row;
    if (map.swizzle == TensorSwizzle::bytes_64) other = unit ^ (row % 4);
    if (map.swizzle == TensorSwizzle::bytes_32) other = unit ^ (row % 2);
    return begin / 128 * 128 + other * 16 + begin % 16;
  }
  std::string operand() const {
    std::string list;
    for (int i = 0; i < map.rank; ++i) list += fmt::format("{}{}", i ? ", " : "", at[static_cast<std::size_t>(i)]);
    return fmt::format("[%map, {{{}}}]", list);
  }
};

constexpr std::size_t kSharedBytes = 16384;

// The body has the address of the tensor map in %map, and that of kSharedBytes of memory in %image.
SmallKernel tensor_kernel(const std::string& body, unsigned cluster = 1) {
  return {
      .body =
          ".reg .b64 %map, %image;\nmov.b64 %map, map;\ncvta.param.u64 %map, %map;\nld.param.u64 %image, [image];\n" +
          body,
      .threads = 64,
      .cluster = cluster,
      .shared_bytes = kSharedBytes,
      .parameters = ", .param .align 64 .b8 map[128], .param .u64 image"};
}

// Between shared memory and the image, word by word from `from` on.
std::string move_image(bool to_shared, std::size_t from, std::size_t bytes) {
  const char* const move = to_shared ? "ld.global.b32 %r22, [%rd10];\nst.shared.b32 [%r21], %r22;\n"
                                     : "ld.shared.b32 %r22, [%r21];\nst.global.b32 [%rd10], %r22;\n";
  return fmt::format(
      "mad.lo.u32 %r20, %tid, 4, {0};\n{{\nMOVE:\nsetp.ge.u32 %p5, %r20, {1};\n@%p5 bra MOVED;\n"
      "add.u32 %r21, %r20, %smem;\ncvt.u64.u32 %rd10, %r20;\nadd.u64 %rd10, %rd10, %image;\n{2}"
      "add.u32 %r20, %r20, 256;\nbra MOVE;\nMOVED:\n}}\n",
      from, from + bytes, move);
}

Runs run_tensor(const TensorCase& tensor, const SmallKernel& kernel, Buffer& data, Bytes& image, int schedules = 3) {
  TensorMapDescription description = tensor.map;
  description.address = data.data() - tensor.before;
  const TensorMap map = encode_tensor_map(description);
  Memory memory;
  memory.add("tensor", data.data(), data.size);
  memory.add("image", image.data(), image.size());
  return run_schedules(kernel, memory, schedules, map, static_cast<void*>(image.data()));
}

std::string tensor_load(const TensorCase& tensor) {
  return fmt::format(
      "@%p1 cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%smem+{}], {}, "
      "[%smem];\n",
      tensor.map.rank, tensor.shared_offset, tensor.operand());
}

void check_load(const TensorCase& tensor) {
  const auto bytes = static_cast<int>(tensor.box_bytes());
  const auto offset = static_cast<std::size_t>(tensor.shared_offset);
  const std::string body = move_image(true, offset, tensor.shared_bytes()) + "fence.proxy.async;\n" + initialise() +
                           expect(bytes) + tensor_load(tensor) + wait("%smem", "0") +
                           move_image(false, offset, tensor.shared_bytes());
  Buffer data(tensor.tensor_bytes());
  Bytes image(kSharedBytes, 0xa5), expected = image;
  const Runs runs = run_tensor(tensor, tensor_kernel(body), data, image);
  INFO(runs.text());
  CHECK(runs.findings.empty());
  const auto size = static_cast<std::size_t>(tensor.element());
  Bytes fill(size);
  if (tensor.map.fill == TensorFill::nan)
    for (std::size_t i = 0; i < size; ++i) fill[i] = i % 2 == 0 ? 0xf7 : 0x7f;
  tensor.for_each_element([&](std::size_t to, std::ptrdiff_t from) {
    std::copy_n(from < 0 ? fill.data() : data.data() + from, size, expected.data() + to);
  });
  CHECK(image == expected);
}

// The instruction stores or reduces the box; `combine` makes of old and stored bytes what must be there.
template <class Combine>
void check_store(const TensorCase& tensor, const std::string& opcode, const Combine& combine) {
  const auto offset = static_cast<std::size_t>(tensor.shared_offset);
  const std::string body = "setp.eq.u32 %p1, %tid, 0;\n" + move_image(true, offset, tensor.shared_bytes()) +
                           "fence.proxy.async.shared::cta;\nbar.sync 0;\n" +
                           fmt::format("@%p1 {} {}, [%smem+{}];\n", opcode, tensor.operand(), offset) + kCommitBulk +
                           kWaitBulk;
  Buffer data(tensor.tensor_bytes(), 7), image_data(kSharedBytes, 9);
  Bytes image = image_data.bytes(), expected = data.bytes();
  const Runs runs = run_tensor(tensor, tensor_kernel(body), data, image, 1);
  INFO(runs.text());
  CHECK(runs.findings.empty());
  const auto size = static_cast<std::size_t>(tensor.element());
  tensor.for_each_element([&](std::size_t from, std::ptrdiff_t to) {
    if (to >= 0) combine(expected.data() + to, image.data() + from, size);
  });
  CHECK(data.bytes() == expected);
}

std::string store_opcode(const TensorCase& tensor) {
  return fmt::format("cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group", tensor.map.rank);
}

TensorCase tensor_of_rank(int rank, TensorElement element, TensorSwizzle swizzle) {
  TensorCase tensor;
  tensor.map.rank = rank;
  tensor.map.element = element;
  tensor.map.swizzle = swizzle;
  const auto size = static_cast<std::uint32_t>(bytes_of(element));
  const std::uint32_t row = swizzle == TensorSwizzle::none ? 48 : 16u << static_cast<int>(swizzle);
  tensor.map.sizes = {200 / size + 3, 7, 5, 4, 3};
  tensor.map.box = {row / size, 6, 3, 2, 2};
  std::uint64_t stride = (tensor.map.sizes[0] * size + 15) / 16 * 16 + 16;
  for (std::size_t i = 0; i + 1 < static_cast<std::size_t>(rank); ++i) {
    tensor.map.byte_strides[i] = stride;
    stride *= tensor.map.sizes[i + 1];
  }
  return tensor;
}

const TensorSwizzle kSwizzles[] = {TensorSwizzle::none, TensorSwizzle::bytes_32, TensorSwizzle::bytes_64,
                                   TensorSwizzle::bytes_128};
// Inside, over an end, before the beginning, wholly outside; the first coordinate in units of 16 bytes.
const std::array<std::int32_t, 5> kPlaces[] = {{2, 1, 1, 1, 0},  {12, 4, 3, 3, 2},  {-1, -2, -1, -1, -1},
                                               {1, -3, 4, 0, 1}, {100, 0, 0, 0, 0}, {0, -6, 0, 0, 0}};

void move_to(TensorCase& tensor, const std::array<std::int32_t, 5>& place) {
  tensor.at = place;
  tensor.at[0] *= 16 / tensor.element();
}

bool is_before_the_beginning(const TensorCase& tensor) {
  return std::any_of(tensor.at.begin(), tensor.at.begin() + tensor.map.rank, [](std::int32_t x) { return x < 0; });
}

}  // namespace

TEST_CASE("tensor loads in every rank and swizzle, inside and outside of the tensor") {
  for (int rank = 1; rank <= 5; ++rank)
    for (const TensorSwizzle swizzle : kSwizzles)
      for (const auto& place : kPlaces) {
        CAPTURE(rank);
        CAPTURE(static_cast<int>(swizzle));
        CAPTURE(place[0]);
        TensorCase tensor = tensor_of_rank(rank, TensorElement::bf16, swizzle);
        move_to(tensor, place);
        check_load(tensor);
      }
}

TEST_CASE("tensor loads of each element size, with fills, element strides, and a box within a swizzle's pattern") {
  for (const TensorElement element : {TensorElement::u8, TensorElement::u16, TensorElement::f32, TensorElement::u64}) {
    TensorCase tensor = tensor_of_rank(3, element, TensorSwizzle::bytes_64);
    move_to(tensor, {-1, 2, 1, 0, 0});
    check_load(tensor);
  }
  for (const TensorElement element :
       {TensorElement::f16, TensorElement::bf16, TensorElement::f32, TensorElement::f64}) {
    TensorCase tensor = tensor_of_rank(2, element, TensorSwizzle::bytes_128);
    tensor.map.fill = TensorFill::nan;
    move_to(tensor, {-1, 4, 0, 0, 0});
    check_load(tensor);
  }
  for (const TensorSwizzle swizzle : kSwizzles) {
    TensorCase tensor = tensor_of_rank(4, TensorElement::f16, swizzle);
    tensor.map.element_strides = {1, 2, 3, 1, 1};
    tensor.map.box[1] = 5;
    move_to(tensor, {1, -1, 1, 1, 0});
    check_load(tensor);
    tensor.shared_offset = 1024 + 384;
    check_load(tensor);
  }
}

TEST_CASE("rows that are narrower than the swizzle's pattern lie as far apart as it is wide") {
  const auto replace = [](std::uint8_t* to, const std::uint8_t* from, std::size_t size) {
    std::copy_n(from, size, to);
  };
  for (const TensorSwizzle swizzle : {TensorSwizzle::bytes_32, TensorSwizzle::bytes_64, TensorSwizzle::bytes_128})
    for (const auto& place : kPlaces) {
      TensorCase tensor = tensor_of_rank(3, TensorElement::bf16, swizzle);
      tensor.map.box[0] = swizzle == TensorSwizzle::bytes_128 ? 24 : 8;
      move_to(tensor, place);
      CAPTURE(static_cast<int>(swizzle));
      CAPTURE(place[0]);
      check_load(tensor);
      if (!is_before_the_beginning(tensor)) check_store(tensor, store_opcode(tensor), replace);
    }
}

TEST_CASE("tensor stores in every rank and swizzle write what is inside of the tensor, and nothing else") {
  const auto replace = [](std::uint8_t* to, const std::uint8_t* from, std::size_t size) {
    std::copy_n(from, size, to);
  };
  for (int rank = 1; rank <= 5; ++rank)
    for (const TensorSwizzle swizzle : kSwizzles)
      for (const auto& place : kPlaces) {
        CAPTURE(rank);
        CAPTURE(static_cast<int>(swizzle));
        CAPTURE(place[0]);
        TensorCase tensor = tensor_of_rank(rank, TensorElement::f16, swizzle);
        move_to(tensor, place);
        if (!is_before_the_beginning(tensor)) check_store(tensor, store_opcode(tensor), replace);
      }
}

namespace {

// What reduces values of T bit by bit, or number by number.
template <class T, class F>
auto combine_as(const F& f) {
  return [f](std::uint8_t* to, const std::uint8_t* from, std::size_t) {
    T old, value;
    std::memcpy(&old, to, sizeof(T));
    std::memcpy(&value, from, sizeof(T));
    const T result = f(old, value);
    std::memcpy(to, &result, sizeof(T));
  };
}

std::string reduce_opcode(const char* operation) {
  return fmt::format("cp.reduce.async.bulk.tensor.3d.global.shared::cta.{}.tile.bulk_group", operation);
}

}  // namespace

TEST_CASE("tensor reductions") {
  const auto of = [](TensorElement element) {
    TensorCase tensor = tensor_of_rank(3, element, TensorSwizzle::bytes_32);
    move_to(tensor, {1, 3, 2, 0, 0});
    return tensor;
  };
  using U32 = std::uint32_t;
  using S64 = std::int64_t;
  using U64 = std::uint64_t;
  check_store(of(TensorElement::u32), reduce_opcode("add"), combine_as<U32>([](U32 a, U32 b) { return a + b; }));
  check_store(of(TensorElement::s64), reduce_opcode("min"),
              combine_as<S64>([](S64 a, S64 b) { return std::min(a, b); }));
  check_store(of(TensorElement::u64), reduce_opcode("xor"), combine_as<U64>([](U64 a, U64 b) { return a ^ b; }));
  check_store(of(TensorElement::u32), reduce_opcode("inc"),
              combine_as<U32>([](U32 a, U32 b) { return a >= b ? 0 : a + 1; }));
}

TEST_CASE("floating-point reductions round to nearest") {
  // 1.0 + 2^-8 in bf16 is a tie, which goes to even; 1 + 3 * 2^-8 goes up to 1 + 2^-6.
  TensorCase tensor = tensor_of_rank(1, TensorElement::bf16, TensorSwizzle::none);
  Buffer data(tensor.tensor_bytes());
  Bytes image(kSharedBytes);
  auto* const old = reinterpret_cast<std::uint16_t*>(data.data());
  const std::uint16_t added[] = {0x3b80, 0x3c40, 0xbf80, 0x7f80};  // 2^-8, 3 * 2^-8, -1, infinity
  for (int i = 0; i < 4; ++i) {
    old[i] = 0x3f80;
    std::memcpy(image.data() + 1024 + 2 * i, &added[i], 2);
  }
  const std::string body = "setp.eq.u32 %p1, %tid, 0;\n" + move_image(true, 1024, 48) +
                           "fence.proxy.async;\nbar.sync 0;\n" +
                           "@%p1 cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group " + tensor.operand() +
                           ", [%smem+1024];\n" + kCommitBulk + kWaitBulk;
  const Runs runs = run_tensor(tensor, tensor_kernel(body), data, image, 1);
  INFO(runs.text());
  CHECK(runs.findings.empty());
  const std::uint16_t expected[] = {0x3f80, 0x3f82, 0x0000, 0x7f80};
  for (int i = 0; i < 4; ++i) CHECK(old[i] == expected[i]);
}

TEST_CASE("a tensor is multicast to the blocks of a cluster") {
  TensorCase tensor = tensor_of_rank(2, TensorElement::bf16, TensorSwizzle::bytes_64);
  move_to(tensor, {1, 1, 0, 0, 0});
  std::string load = tensor_load(tensor);
  load.replace(load.find("::bytes"), 7, "::bytes.multicast::cluster");
  load.replace(load.find("[%smem];"), 8, "[%smem], %rs0;");
  const auto bytes = static_cast<int>(tensor.box_bytes());
  const std::string body = initialise() + expect(bytes) +
                           "barrier.cluster.arrive;\nbarrier.cluster.wait;\nmov.b16 %rs0, 3;\n"
                           "setp.ne.u32 %p4, %rank, 0;\n@%p4 setp.eq.u32 %p1, %tid, 1000;\n" +
                           load + wait("%smem", "0") + "setp.eq.u32 %p4, %rank, 0;\n@%p4 bra END;\n" +
                           move_image(false, static_cast<std::size_t>(tensor.shared_offset), tensor.box_bytes()) +
                           "END:\n";
  Buffer data(tensor.tensor_bytes());
  Bytes image(kSharedBytes, 0xa5), expected = image;
  const Runs runs = run_tensor(tensor, tensor_kernel(body, 2), data, image, test::kSchedules);
  INFO(runs.text());
  CHECK(runs.findings.empty());
  tensor.for_each_element(
      [&](std::size_t to, std::ptrdiff_t from) { std::copy_n(data.data() + from, 2, expected.data() + to); });
  CHECK(image == expected);
  CHECK(runs.last.counters.tma_bytes_loaded == 2 * tensor.box_bytes());
}

TEST_CASE("a map may begin before its memory, unless a load begins outside of it") {
  for (std::int32_t row = 2; row < 12; ++row) {
    CAPTURE(row);
    TensorCase tensor = tensor_of_rank(2, TensorElement::bf16, TensorSwizzle::none);
    tensor.before = 2 * static_cast<std::ptrdiff_t>(tensor.map.byte_strides[0]);
    tensor.at = {0, row, 0, 0, 0};
    Buffer data(tensor.tensor_bytes());
    Bytes image(kSharedBytes);
    const bool begins_inside = row < static_cast<std::int32_t>(tensor.map.sizes[1]);
    const auto runs_of = [&](const std::string& copy) {
      return run_tensor(tensor, tensor_kernel(initialise() + copy), data, image, 1);
    };
    const Runs loads = runs_of(expect(static_cast<int>(tensor.box_bytes())) + tensor_load(tensor) + wait("%smem", "0"));
    INFO(loads.text());
    CHECK(loads.findings.empty() == begins_inside);
    if (!begins_inside) CHECK(loads.has(FindingKind::global_out_of_bounds, "16 bytes"));
    const Runs stores = runs_of(fmt::format("@%p1 {} {}, [%smem+1024];\n", store_opcode(tensor), tensor.operand()) +
                                kCommitBulk + kWaitBulk);
    INFO(stores.text());
    CHECK(!stores.has(FindingKind::global_out_of_bounds, ""));
  }
}

TEST_CASE("tensor copies with operands that they cannot have are found") {
  TensorCase tensor = tensor_of_rank(2, TensorElement::bf16, TensorSwizzle::bytes_128);
  const auto found = [&](const std::string& copy, FindingKind kind, const std::string& text) {
    Buffer data(tensor.tensor_bytes());
    Bytes image(kSharedBytes);
    const Runs runs = run_tensor(tensor, tensor_kernel(initialise() + copy), data, image, 1);
    INFO("expected ", std::string(emulator::to_string(kind)), ": ", text, "\n", runs.text());
    CHECK(runs.has(kind, text));
  };
  tensor.shared_offset = 1024 + 64;
  found(tensor_load(tensor), FindingKind::misaligned, "must be a multiple of 128, was 0x840");
  tensor.shared_offset = kSharedBytes - 128;
  found(tensor_load(tensor), FindingKind::shared_out_of_bounds, "768 bytes at 0x4380");
  tensor.shared_offset = 1024;
  std::string other_rank = tensor_load(tensor);
  other_rank.replace(other_rank.find("2d"), 2, "1d");
  other_rank.replace(other_rank.find("{0, 0}"), 6, "{0}");
  found(other_rank, FindingKind::bad_operand, "the tensor must have 1 dimensions, has 2");
  std::string no_map = tensor_load(tensor);
  no_map.replace(no_map.find("[%map"), 5, "[%image");
  found("add.u64 %image, %image, 63;\nand.b64 %image, %image, -64;\n" + no_map, FindingKind::bad_operand,
        "must come from encode_tensor_map");
  no_map.replace(no_map.find("[%image"), 7, "[%map+32");
  found(no_map, FindingKind::misaligned, "the address of the tensor map must be a multiple of 64");
  std::string reduction = "@%p1 cp.reduce.async.bulk.tensor.2d.global.shared::cta.and.tile.bulk_group ";
  found(reduction + tensor.operand() + ", [%smem+1024];\n", FindingKind::bad_operand, "do not have this reduction");
  TensorCase askew = tensor;
  askew.at[0] = 4;
  found(tensor_load(askew), FindingKind::misaligned, "the first coordinate must be at a multiple of 16 bytes, was 4");
  TensorCase before = tensor;
  before.at[1] = -1;
  found(fmt::format("@%p1 {} {}, [%smem+1024];\n", store_opcode(before), before.operand()), FindingKind::bad_operand,
        "must not be negative, coordinate 1 was -1");
  tensor.map.sizes[1] = 8;  // one row more than there is memory
  const TensorCase large = tensor;
  tensor.map.sizes[1] = 7;
  Buffer data(tensor.tensor_bytes());
  Bytes image(kSharedBytes);
  TensorCase last = large;
  last.at = {0, 5, 0, 0, 0};
  const Runs runs = run_tensor(last, tensor_kernel(initialise() + tensor_load(last)), data, image, 1);
  CHECK(runs.has(FindingKind::global_out_of_bounds, "'tensor'"));
}

TEST_CASE("what PTX does not have, and what is not modelled, is refused with the line") {
  for (const char* statement :
       {"cp.async.cg.shared.global [%smem], [%out], 8;", "cp.async.global.shared [%out], [%smem], 16;",
        "cp.async.bulk.shared::cluster.global [%smem], [%out], 16, [%smem];",
        "cp.async.bulk.tensor.6d.global.shared::cta.tile.bulk_group [%rd0, {%r0, %r0, %r0, %r0, %r0, %r0}], [%smem];",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd0, {%r0}], [%smem];",
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%smem], [%rd0, {%r0, %r0, "
        "%r0}], [%smem], {%rs0};",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.and.f32 [%out], [%smem], 16;",
        "cp.reduce.async [%out], [%smem], 16;", "cp.async.wait_group %r0;", "cp.copy [%smem], [%out], 16;"}) {
    INFO(std::string(statement));
    CHECK_THROWS_AS(emulator::Program(SmallKernel{.body = statement}.ptx()), emulator::ParseError);
  }
}

// --- Encoding --------------------------------------------------------------------------------------------------------

TEST_CASE("a tensor map that cannot be is refused, and the text says what must be") {
  const auto refusal = [](const std::function<void(TensorMapDescription&)>& change) -> std::string {
    static Buffer data(4096);
    TensorMapDescription map = tensor_of_rank(3, TensorElement::bf16, TensorSwizzle::bytes_64).map;
    map.address = data.data();
    change(map);
    try {
      encode_tensor_map(map);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal([](auto&) {}).empty());
  CHECK(refusal([](auto& map) { map.rank = 6; }) == "tensor map: rank must be from 1 to 5, was 6");
  CHECK(refusal([](auto& map) { map.rank = 0; }) == "tensor map: rank must be from 1 to 5, was 0");
  CHECK(refusal([](auto& map) {
          map.address = static_cast<std::uint8_t*>(map.address) + 8;
        }).starts_with("tensor map: address must be a multiple of 16, was 0x"));
  CHECK(refusal([](auto& map) { map.address = nullptr; }) == "tensor map: address must be a multiple of 16, was 0x0");
  CHECK(refusal([](auto& map) { map.sizes[1] = 0; }) == "tensor map: sizes[1] must be from 1 to 4294967296, was 0");
  CHECK(refusal([](auto& map) { map.byte_strides[1] = 24; }) ==
        "tensor map: byte_strides[1] must be a multiple of 16 below 1099511627776, was 24");
  CHECK(refusal([](auto& map) { map.box[2] = 257; }) == "tensor map: box[2] must be from 1 to 256, was 257");
  CHECK(refusal([](auto& map) { map.element_strides[1] = 9; }) ==
        "tensor map: element_strides[1] must be from 1 to 8, was 9");
  CHECK(refusal([](auto& map) { map.box[0] = 64; }) ==
        "tensor map: box[0] must be at most the 64 bytes of the swizzle, was 128");
  CHECK(refusal([](auto& map) {
          map.swizzle = TensorSwizzle::none;
          map.box[0] = 12;
        }) == "tensor map: box[0] must be a multiple of 16 bytes, was 24");
  CHECK(refusal([](auto& map) {
          map.element = TensorElement::u16;
          map.fill = TensorFill::nan;
        }) == "tensor map: fill must be zeros for elements that are not floating-point, was nan");
}
