// SPDX-License-Identifier: Apache-2.0
// What a kernel is given for a call.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "flashjit/error.h"
#include "generator/features.h"
#include "generator/variant_space.h"
#include "runtime/call/forward_arguments.h"
#include "runtime/call/operation.h"
#include "tests/support/feature.h"

namespace {

using namespace flashjit;
using generator::HopperArguments;
using generator::MmaArguments;

void* address(std::uintptr_t index) { return reinterpret_cast<void*>(index << 40); }

struct Call {
  Call()
      : q(address(1), DType::bf16, {2, 70, 8, 64}),
        k(address(2), DType::bf16, {2, 4096, 2, 64}),
        v(address(3), DType::bf16, {2, 4096, 2, 32}),
        out(address(4), DType::bf16, {2, 70, 8, 32}) {}
  Tensor q, k, v, out;
  AttentionOptions opts;

  MmaArguments arguments() const { return runtime::make_forward_arguments(validated(), MmaVariant{}); }
  HopperArguments arguments(const HopperVariant& variant) const {
    return runtime::make_forward_arguments(validated(), variant);
  }
  runtime::ForwardCall validated() const {
    auto call = runtime::validate_inputs(q, k, v, opts);
    runtime::validate_out(call, out);
    return call;
  }
};

// Of heads_q query heads over heads_kv, head dim 64.
Call call_of(std::int64_t seqlen_q, std::int64_t heads_q, std::int64_t heads_kv) {
  Call call;
  call.q = Tensor(address(1), DType::bf16, {2, seqlen_q, heads_q, 64});
  call.k = Tensor(address(2), DType::bf16, {2, 4096, heads_kv, 64});
  call.v = Tensor(address(3), DType::bf16, {2, 4096, heads_kv, 32});
  call.out = Tensor(address(4), DType::bf16, {2, seqlen_q, heads_q, 32});
  return call;
}

// What the kernel of a variant is launched with.
runtime::Launch launch_of(const Call& call, const char* variant) {
  const runtime::ForwardCall validated = call.validated();
  const Architecture& architecture = find_architecture("sm_90a");
  const runtime::Operation operation(validated, {validated.problem, parse_variant(variant), architecture}, {132, 132},
                                     nullptr);
  REQUIRE(operation.end() - operation.begin() == 1);
  return *operation.begin();
}

// A variant of each family, and the bytes of the family's own arguments.
constexpr std::pair<const char*, std::size_t> kOfEachFamily[] = {
    {"mma-q64-kv32", sizeof(MmaArguments)}, {"hopper-q64-kv32-ppoff-whole", sizeof(HopperArguments)}};

// What a launch has at an offset.
template <class Arguments>
Arguments arguments_at(const runtime::Launch& launch, std::size_t offset) {
  REQUIRE(launch.argument_bytes >= offset + sizeof(Arguments));
  Arguments arguments;
  std::memcpy(&arguments, launch.arguments + offset, sizeof(arguments));
  return arguments;
}

HopperVariant of_rows(int block_q) {
  HopperVariant variant;
  variant.block_q = block_q;
  return variant;
}

}  // namespace

TEST_CASE("a launch has room for the arguments of all parts") {
  std::size_t bytes = 0;
  for (const generator::FeatureRow& row : generator::features()) {
    CHECK((row.arguments != nullptr) == (row.argument_bytes > 0));
    bytes += row.argument_bytes;
  }
  CHECK(bytes <= runtime::Launch::kPartBytes);
}

TEST_CASE("pointers, sizes and byte strides of a packed call") {
  const MmaArguments a = Call().arguments();
  CHECK(a.q == address(1));
  CHECK(a.k == address(2));
  CHECK(a.v == address(3));
  CHECK(a.out == address(4));
  CHECK(a.lse == nullptr);
  CHECK(a.q_strides.batch == 70 * 8 * 64 * 2);
  CHECK(a.q_strides.row == 8 * 64 * 2);
  CHECK(a.q_strides.head == 64 * 2);
  CHECK(a.v_strides.row == 2 * 32 * 2);
  CHECK(a.out_strides.head == 32 * 2);
  CHECK(a.sizes.batch == 2);
  CHECK(a.sizes.seqlen_q == 70);
  CHECK(a.sizes.seqlen_kv == 4096);
  CHECK(a.sizes.num_heads_q == 8);
  CHECK(a.sizes.heads_per_group == 4);
  CHECK(a.sizes.num_q_tiles == 2);
}

TEST_CASE("the strides of the LSE are those of batch, row and head") {
  Call call;
  call.opts.lse = Tensor(address(5), DType::f32, {2, 8, 70});
  const MmaArguments a = call.arguments();
  CHECK(a.lse == address(5));
  CHECK(a.lse_strides.batch == 8 * 70 * 4);
  CHECK(a.lse_strides.head == 70 * 4);
  CHECK(a.lse_strides.row == 4);
}

TEST_CASE("the stride of a dimension of size one is zero, whatever the view says") {
  Call call;
  for (Tensor* tensor : {&call.q, &call.k, &call.v, &call.out}) {
    tensor->shape[0] = 1;
    tensor->strides[0] = std::numeric_limits<std::int64_t>::max();
  }
  CHECK(call.arguments().k_strides.batch == 0);
}

TEST_CASE("the scale goes to base 2 without its sign, and never as zero") {
  const auto with_scale = [](float scale) {
    Call call;
    call.opts.softmax_scale = scale;
    return call.arguments();
  };
  CHECK(Call().arguments().sizes.scale_log2 == doctest::Approx(1.4426950408889634 / 8));
  CHECK(with_scale(0.5f).sizes.scale_log2 == doctest::Approx(1.4426950408889634 / 2));
  CHECK(with_scale(0.5f).sizes.query_sign == 0);
  CHECK(with_scale(-0.5f).sizes.scale_log2 == doctest::Approx(1.4426950408889634 / 2));
  CHECK(with_scale(-0.5f).sizes.query_sign == 0x80008000);
  CHECK(with_scale(0.0f).sizes.scale_log2 > 0);
  CHECK(std::isinf(with_scale(0.0f).sizes.scale_log2 * -std::numeric_limits<float>::infinity()));
}

TEST_CASE("a section is as many query heads as share 32 MiB of keys and values, and at least one group") {
  const auto with_keys = [](std::int64_t seqlen_kv, std::int64_t heads_kv) {
    Call call;
    call.k = Tensor(address(2), DType::bf16, {2, seqlen_kv, heads_kv, 64});
    call.v = Tensor(address(3), DType::bf16, {2, seqlen_kv, heads_kv, 32});
    return call.arguments().sizes.heads_per_section;
  };
  CHECK(with_keys(1 << 16, 8) == 2);  // 12 MiB a head
  CHECK(with_keys(1 << 16, 2) == 8);  // a group of 4 query heads, two groups fit
  CHECK(with_keys(1 << 20, 2) == 4);  // one head is larger than that
  CHECK(with_keys(16, 4) == 16);      // across the batch, and no more heads than there are
  CHECK(with_keys(0, 4) == 16);
}

TEST_CASE("a section has about two waves of tiles, or 32 heads") {
  const auto with_queries = [](std::int64_t seqlen_q, std::int64_t heads_kv) {
    Call call = call_of(seqlen_q, 64, heads_kv);
    call.k.shape[1] = call.v.shape[1] = 16;
    return call.arguments(of_rows(128)).sizes;
  };
  CHECK(with_queries(512, 64).heads_per_section == 64);   // 4 tiles each
  CHECK(with_queries(256, 64).heads_per_section == 128);  // 2 tiles each, both entries of the batch
  CHECK(with_queries(4096, 64).heads_per_section == 32);
  CHECK(with_queries(4096, 1).heads_per_section == 64);  // never less than a group
}

TEST_CASE("a hopper kernel is given the sizes, the LSE and the scale as well; maps and counter come later") {
  Call call = call_of(260, 8, 2);
  call.opts.lse = Tensor(address(5), DType::f32, {2, 8, 260});
  call.opts.softmax_scale = -0.5f;
  const HopperArguments a = call.arguments(of_rows(128));
  CHECK(a.lse == address(5));
  CHECK(a.lse_strides.head == 260 * 4);
  CHECK(a.tile_counter == nullptr);
  CHECK(a.sizes.scale_log2 == doctest::Approx(1.4426950408889634 / 2));
  CHECK(a.sizes.query_sign == 0x80008000);
  CHECK(a.sizes.batch == 2);
  CHECK(a.sizes.seqlen_q == 260);
  CHECK(a.sizes.seqlen_kv == 4096);
}

TEST_CASE("heads of a group share a tile when that makes fewer tiles") {
  struct Expected {
    std::int64_t seqlen_q, heads_q, heads_kv;
    int block_q, packed_heads;
  };
  for (const Expected& e : {
           Expected{1, 32, 2, 128, 16},   // a whole group of 16 in one tile
           Expected{1, 32, 1, 128, 16},   // of a group of 32 no more than 16
           Expected{8, 32, 2, 128, 16},   // exactly one tile
           Expected{9, 32, 2, 128, 8},    // 16 heads together would need two tiles: no gain
           Expected{1, 8, 8, 128, 1},     // each head has keys of its own
           Expected{1, 6, 2, 128, 1},     // a group of 3 has no even part
           Expected{1, 12, 2, 128, 2},    // of a group of 6
           Expected{1, 24, 2, 128, 4},    // of a group of 12
           Expected{128, 32, 2, 128, 1},  // full tiles gain nothing
           Expected{64, 32, 2, 128, 2},   // half a tile each
           Expected{192, 32, 2, 128, 2},  // one and a half
           Expected{65, 4, 1, 128, 4},    // 3 tiles for 4 heads, not 4
           Expected{1, 4, 1, 64, 4},
           Expected{1, 16, 1, 4, 4},  // no more than a tile has rows
           Expected{3, 16, 1, 4, 4},
           Expected{1, 16, 1, 8, 8},
       }) {
    CAPTURE(e.seqlen_q);
    CAPTURE(e.heads_q);
    CAPTURE(e.heads_kv);
    const Call call = call_of(e.seqlen_q, e.heads_q, e.heads_kv);
    CHECK(runtime::choose_packed_heads(call.validated(), {.block_q = e.block_q}) == e.packed_heads);
    CHECK((1 << call.arguments(of_rows(e.block_q)).packed_heads_log2) == e.packed_heads);
  }
}

TEST_CASE("packed rows stay within the 32 bits of the kernel's rows") {
  constexpr std::int64_t kMany = (std::int64_t{1} << 30) - 33;  // two heads together would need a tile less
  const HopperArguments a = call_of(kMany, 2, 1).arguments(of_rows(64));
  CHECK(a.packed_heads_log2 == 0);
  CHECK(a.sizes.num_q_tiles == (kMany + 63) / 64);
}

TEST_CASE("a packed call counts its heads in packs, everywhere") {
  const auto sizes = call_of(5, 32, 2).arguments(of_rows(64)).sizes;  // packs of 8: 40 rows of 64; of 16: 80
  CHECK(call_of(5, 32, 2).arguments(of_rows(64)).packed_heads_log2 == 3);
  CHECK(sizes.num_heads_q == 4);
  CHECK(sizes.heads_per_group == 2);
  CHECK(sizes.num_q_tiles == 1);
  CHECK(sizes.heads_per_section == 8);  // both groups of both entries of the batch fit L2
  CHECK(runtime::count_tiles(sizes) == 2 * 4);
}

TEST_CASE("the tiles of a head fill whole clusters") {
  HopperVariant pair = of_rows(128);
  pair.cluster = 2;
  CHECK(call_of(100, 2, 2).arguments(pair).sizes.num_q_tiles == 2);
  CHECK(call_of(256, 2, 2).arguments(pair).sizes.num_q_tiles == 2);
  CHECK(call_of(257, 2, 2).arguments(pair).sizes.num_q_tiles == 4);
  CHECK(call_of(257, 2, 2).arguments(of_rows(128)).sizes.num_q_tiles == 3);
}

TEST_CASE("a window stands behind the arguments of the family, with a number that stands for all keys") {
  struct Expected {
    Window window;
    bool causal;
    int left, right;
  };
  constexpr int kAll = generator::kWindowReach;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const Expected& e :
       {Expected{{5, 7}, false, 5, 7}, Expected{{0, 1}, false, 0, 1}, Expected{{5, -1}, false, 5, kAll},
        Expected{{-1, 7}, false, kAll, 7}, Expected{{5, 0}, false, 5, kAll}, Expected{{5, 7}, true, 5, kAll},
        Expected{{kMost, kMost}, false, kAll, kAll}, Expected{{kAll - 1, kAll + 1}, false, kAll - 1, kAll},
        Expected{{std::int64_t{1} << 32, 3}, false, kAll, 3}}) {
    CAPTURE(e.window.left);
    CAPTURE(e.window.right);
    CAPTURE(e.causal);
    Call call;
    call.opts.window = e.window;
    call.opts.causal = e.causal;
    for (const auto& [variant, family_bytes] : kOfEachFamily) {
      CAPTURE(std::string(variant));
      const auto window = arguments_at<generator::WindowArguments>(launch_of(call, variant), family_bytes);
      CHECK(window.left == e.left);
      CHECK(window.right == e.right);
    }
  }
}

TEST_CASE("a chunk stands behind the arguments of the family, with a number that stands for all keys") {
  constexpr int kAll = generator::kWindowReach;
  for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{9}, std::int64_t{kAll} - 1, std::int64_t{kAll},
                                   std::int64_t{kAll} + 1, std::numeric_limits<std::int64_t>::max()}) {
    Call call;
    call.opts.chunk = chunk;
    for (const auto& [variant, family_bytes] : kOfEachFamily) {
      CAPTURE(std::string(variant));
      CAPTURE(chunk);
      CHECK(arguments_at<generator::ChunkArguments>(launch_of(call, variant), family_bytes).keys ==
            std::min<std::int64_t>(chunk, kAll));
    }
  }
}

TEST_CASE("a cap, slopes and sinks stand behind the masks, each where its alignment lets it") {
  for (const bool chunk : {false, true}) {
    for (const bool softcap : {false, true}) {
      Call call;
      call.opts.window = {5, 7};
      if (chunk) call.opts.chunk = 9;
      if (softcap) call.opts.softcap = 30;
      call.opts.alibi_slopes = Tensor(address(6), DType::f32, {8});
      call.opts.sinks = Tensor(address(7), DType::f32, {2, 8}, {10, 1});
      for (const auto& [variant, family_bytes] : kOfEachFamily) {
        CAPTURE(std::string(variant));
        CAPTURE(chunk);
        CAPTURE(softcap);
        const runtime::Launch launch = launch_of(call, variant);
        std::size_t offset = family_bytes + sizeof(generator::WindowArguments);
        if (chunk) offset += sizeof(generator::ChunkArguments);
        if (softcap) {
          const auto cap = arguments_at<generator::SoftcapArguments>(launch, offset);
          CHECK(cap.cap_log2 == doctest::Approx(30 * 1.4426950408889634));
          CHECK(cap.inverse_log2 == doctest::Approx(1 / (30 * 1.4426950408889634)));
          offset += sizeof(cap);
        }
        offset += chunk ? 4 : 0;  // a gap: slopes begin with a pointer
        REQUIRE(offset % 8 == 0);
        const auto slopes = arguments_at<generator::HeadArguments>(launch, offset);
        CHECK(slopes.first == address(6));
        CHECK(slopes.batch_stride == 0);
        const auto sinks = arguments_at<generator::HeadArguments>(launch, offset + sizeof(slopes));
        CHECK(sinks.first == address(7));
        CHECK(sinks.batch_stride == 40);
      }
    }
  }
}

TEST_CASE("the captures of functions stand behind the offsets of their sequences") {
  struct TextArguments {  // with a tensor of two dimensions, and a number
    generator::OffsetArguments offsets;
    const void* data;
    std::int64_t strides[2];
    std::uint32_t sizes[2];
    float number;
  };
  for (const auto& [variant, family_bytes] : kOfEachFamily) {
    CAPTURE(std::string(variant));
    Call call;
    call.opts.bias = Tensor(address(6), DType::f16, {1, 8, 1, 4096}, {3, 5000, 4, 1});
    call.opts.score = Score("score + step * slope(batch, head)",
                            {{"slope", Tensor(address(7), DType::f32, {2, 8}, {100, 1})}, {"step", 0.5}});
    call.opts.key_offsets = Tensor(address(8), DType::i32, {2});
    const runtime::Launch launch = launch_of(call, variant);
    struct BiasArguments {
      generator::OffsetArguments offsets;
      const void* data;
      std::int64_t strides[4];
      std::uint32_t sizes[4];
    };
    const auto bias = arguments_at<BiasArguments>(launch, family_bytes);
    CHECK(bias.offsets.of_queries == nullptr);
    CHECK(bias.offsets.of_keys == nullptr);
    CHECK(bias.data == address(6));
    const std::int64_t bias_strides[] = {0, 10000, 0, 2};
    const std::uint32_t bias_sizes[] = {2, 8, 70, 4096};
    for (int i = 0; i < 4; ++i) {
      CHECK(bias.strides[i] == bias_strides[i]);
      CHECK(bias.sizes[i] == bias_sizes[i]);
    }
    const auto score = arguments_at<TextArguments>(launch, family_bytes + sizeof(bias));
    CHECK(score.offsets.of_queries == nullptr);
    CHECK(score.offsets.of_keys == address(8));
    CHECK(score.data == address(7));
    CHECK(score.strides[0] == 400);
    CHECK(score.strides[1] == 4);
    CHECK(score.sizes[0] == 2);
    CHECK(score.sizes[1] == 8);
    CHECK(score.number == 0.5f);
  }
}

TEST_CASE("a key's page is found by a product, whatever the size of pages") {
  for (const std::int64_t page_size : {1, 2, 3, 5, 7, 8, 16, 24, 63, 64, 65, 100, 127, 1023, 4096, 65537}) {
    CAPTURE(page_size);
    Call call;
    call.k = Tensor(address(2), DType::bf16, {9, page_size, 2, 64});
    call.v = Tensor(address(3), DType::bf16, {9, page_size, 2, 32});
    call.opts.page_table = Tensor(address(6), DType::i32, {2, 4}, {7, 1});
    const generator::PagedArguments arguments = runtime::paged_arguments(call.validated());
    CHECK(arguments.row_stride == 7);
    CHECK(arguments.pages == 9);
    CHECK(page_size % arguments.box_rows == 0);
    constexpr std::uint64_t kMost = (std::uint64_t{1} << 31) - 1;
    for (const std::uint64_t page : {0, 1, 2, 1000, 30000, 1 << 20})
      for (const std::uint64_t key : {page * page_size, (page + 1) * page_size - 1, kMost - page})
        if (key <= kMost) CHECK((key * arguments.magic >> arguments.shift) == key / page_size);
  }
}

TEST_CASE("arguments begin at a multiple of their alignment, and only those that are asked for take room") {
  for (const generator::FeatureRow& row : generator::features()) {
    CAPTURE(std::string(row.word));
    for (std::size_t before = 64; before < 72; ++before) {
      const std::size_t offset = generator::argument_offset(row, before);
      CHECK(offset % row.argument_alignment == 0);
      CHECK(offset >= before);
      CHECK(offset < before + row.argument_alignment);
    }
    Problem problem;
    CHECK(generator::argument_bytes(problem, 72, 8) == 72);
    tests::ask(problem, row);
    Problem without = problem;
    tests::ask(without, row, false);  // what it cannot be without
    const std::size_t bytes_before = generator::argument_bytes(without, 72, 8);
    CHECK(generator::argument_bytes(problem, 72, 8) ==
          bytes_before + (generator::argument_bytes(row, problem) + 7) / 8 * 8);
  }
  Problem problem;
  problem.window = problem.softcap = problem.alibi = true;
  CHECK(generator::argument_bytes(problem, 72, 8) == 72 + 8 + 8 + 16);
  CHECK(generator::argument_bytes(problem, 68, 4) == 68 + 8 + 8 + 4 + 16);
  CHECK(generator::argument_bytes(problem, 64, 64) == 128);
}

TEST_CASE(
    "the slopes of a batch entry stand where its stride says, and without one for all entries at the same place") {
  const auto stride_of = [](const Dims& shape, const Dims& strides) {
    Call call;
    call.opts.alibi_slopes = Tensor(address(6), DType::f32, shape, strides);
    return arguments_at<generator::HeadArguments>(launch_of(call, "mma-q64-kv32"), sizeof(MmaArguments)).batch_stride;
  };
  CHECK(stride_of({8}, {1}) == 0);
  CHECK(stride_of({2, 8}, {8, 1}) == 32);
  CHECK(stride_of({2, 8}, {100, 1}) == 400);
  CHECK(stride_of({2, 8}, {0, 1}) == 0);
  CHECK(stride_of({2, 8}, {std::int64_t{1} << 40, 1}) == std::int64_t{1} << 42);
  // Of one batch entry the stride says nothing.
  Call call;
  for (Tensor* tensor : {&call.q, &call.k, &call.v, &call.out}) tensor->shape[0] = 1;
  call.opts.alibi_slopes = Tensor(address(6), DType::f32, {1, 8}, {-5, 1});
  const runtime::Launch launch = launch_of(call, "mma-q64-kv32");
  CHECK(arguments_at<generator::HeadArguments>(launch, sizeof(MmaArguments)).batch_stride == 0);
}

TEST_CASE("without a window a launch has the arguments of the family and no more") {
  Call call;
  for (const Window& window : {Window{}, Window{-1, 0}}) {
    call.opts.window = window;
    CHECK(launch_of(call, "mma-q64-kv32").argument_bytes == sizeof(MmaArguments));
    CHECK(launch_of(call, "hopper-q64-kv32-ppoff-whole").argument_bytes == sizeof(HopperArguments));
  }
}

TEST_CASE("positions and the reach of a window stay within 32 bits") {
  constexpr std::int64_t kLongest = std::int64_t{1} << 30, kRowsOfTile = 512;
  constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
  CHECK(kLongest + kRowsOfTile + generator::kWindowReach <= kLargest);
  CHECK(-kLongest - generator::kWindowReach >= -kLargest);
}

TEST_CASE("more tiles than a launch can have blocks are refused") {
  generator::ForwardSizes sizes{};
  sizes.batch = 1 << 16;
  sizes.num_heads_q = 1 << 14;
  sizes.num_q_tiles = 1;
  CHECK(runtime::count_tiles(sizes) == 0x40000000);
  sizes.num_q_tiles = 2;
  CHECK_THROWS_AS(runtime::count_tiles(sizes), Error);
}

TEST_CASE("persistent kernels have as many blocks as run at once, in whole clusters") {
  HopperVariant variant;
  for (const Scheduler scheduler : {Scheduler::fixed, Scheduler::dynamic}) {
    variant.scheduler = scheduler;
    CHECK(runtime::grid_size(variant, 1000, 132) == 132);
    CHECK(runtime::grid_size(variant, 100, 132) == 100);
  }
  variant.scheduler = Scheduler::single;
  CHECK(runtime::grid_size(variant, 1000, 132) == 1000);
  variant.cluster = 2;
  CHECK(runtime::grid_size(variant, 1000, 133) == 1000);
  variant.scheduler = Scheduler::fixed;
  CHECK(runtime::grid_size(variant, 1000, 133) == 132);
  CHECK(runtime::grid_size(variant, 1000, 1) == 2);
}
