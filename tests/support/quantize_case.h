// SPDX-License-Identifier: Apache-2.0
// Rows to be made e4m3 or e5m2, drawn at random: how they lie in memory, what becomes of them on the way, what has a
// scale.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "flashjit/quantize.h"
#include "flashjit/reference.h"
#include "flashjit/tensor.h"
#include "tests/support/append_case.h"

namespace flashjit::tests {

// Tensors and options without memory for them, as an AppendCase.
struct QuantizeCase {
  explicit QuantizeCase(std::uint64_t seed) : QuantizeCase(AppendDice(seed), seed) {}

  enum Input { x, cosines, sines, positions, kInputs };
  std::vector<HostTensor> inputs = std::vector<HostTensor>(kInputs);
  HostTensor given;  // scales; empty where they are made
  Dims memory_shape, shape, strides, scale_shape;
  QuantizeOptions options;  // without tensors
  bool interleaved = false;
  DType stored = DType::e4m3;

  bool turns() const { return inputs[cosines].shape().size() > 0; }
  std::string describe() const {
    constexpr const char* kScales[] = {" tensor", " head", " block "};
    return std::string(to_string(inputs[x].dtype())) + " to " + to_string(stored) +
           kScales[static_cast<int>(options.scale_of)] +
           (options.block_size > 0 ? std::to_string(options.block_size) : "") +
           (options.scale_is_given ? " given" : "") + (options.rotation_seed ? " rotated" : "") +
           (turns() ? interleaved ? " neighbours" : " halves" : "") + " " + to_string(shape) + " strides " +
           to_string(strides);
  }
  // Of memory that x and out each have such of.
  Tensor view(void* memory, DType dtype) const { return {memory, dtype, shape, strides}; }
  HostTensor poisoned_out() const { return poisoned(stored, memory_shape); }
  HostTensor poisoned_scale() const { return options.scale_is_given ? given : poisoned(DType::f32, scale_shape); }
  QuantizeOptions options_of(const std::vector<Tensor>& tensors) const {
    QuantizeOptions opts = options;
    if (turns()) {
      opts.rotary_cos = tensors[cosines], opts.rotary_sin = tensors[sines], opts.rotary_interleaved = interleaved;
      if (inputs[positions].shape().size() > 0) opts.positions = tensors[positions];
    }
    return opts;
  }

 private:
  QuantizeCase(AppendDice dice, std::uint64_t seed);
  void draw_rotary(AppendDice& dice, std::int64_t tokens, std::int64_t head_dim, bool is_packed);
};

inline QuantizeCase::QuantizeCase(AppendDice dice, std::uint64_t seed) {
  const bool is_packed = dice.up_to(3) == 0, heads_first = dice.coin();
  const std::int64_t batch = is_packed ? 1 : 1 + dice.up_to(2), heads = 1 + dice.up_to(4);
  const std::int64_t seqlen = dice.coin() ? 1 + dice.up_to(40) : 100 + dice.up_to(300);
  const std::int64_t head_dim = dice.one_of<std::int64_t>({16, 32, 48, 64, 80, 96, 128, 192, 256});
  const std::int64_t pitch = head_dim + dice.one_of<std::int64_t>({0, 16});  // of a row
  shape = {batch, seqlen, heads, head_dim};
  strides = heads_first ? Dims{seqlen * heads * pitch, pitch, seqlen * pitch, 1}
                        : Dims{seqlen * heads * pitch, heads * pitch, pitch, 1};
  memory_shape = {batch, seqlen * heads * pitch};
  options.scale_of = dice.one_of({ScaleOf::tensor, ScaleOf::head, ScaleOf::block});
  if (options.scale_of == ScaleOf::block)
    options.block_size = dice.one_of<std::int64_t>({1, 16, 40, 64, 128, 200, 500});
  options.scale_is_given = dice.up_to(3) == 0;
  if (dice.coin()) options.rotation_seed = seed;
  inputs[x] = HostTensor::random_normal(dice.one_of({DType::f16, DType::bf16}), memory_shape, seed);
  if (dice.up_to(9) == 0) std::memset(inputs[x].data(), 0, inputs[x].element_count() * 2);
  if (dice.coin()) draw_rotary(dice, batch * seqlen, head_dim, is_packed);
  if (is_packed) shape = {seqlen, heads, head_dim}, strides = {strides[1], strides[2], 1};
  scale_shape = quantize_scale_shape(view(nullptr, DType::f16), options);
  if (seed % 3 == 1) stored = DType::e5m2;
  if (!options.scale_is_given) return;
  given = HostTensor(DType::f32, scale_shape);
  for (std::size_t i = 0; i < given.element_count(); ++i)
    store_element(given.data(), DType::f32, static_cast<std::int64_t>(i), 0.002 + 0.001 * static_cast<double>(i % 5));
}

inline void QuantizeCase::draw_rotary(AppendDice& dice, std::int64_t tokens, std::int64_t head_dim, bool is_packed) {
  constexpr std::int64_t kPositions = 300;
  interleaved = dice.coin();
  const std::int64_t half = dice.coin() ? head_dim / 16 * 8 : 8;
  const DType of_tables = dice.one_of({DType::f32, DType::f16, DType::bf16});
  for (const Input input : {cosines, sines}) {
    inputs[input] = HostTensor(of_tables, {kPositions, half});
    for (std::int64_t i = 0; i < kPositions * half; ++i) {
      const double angle = static_cast<double>(i / half) / std::pow(100.0, static_cast<double>(i % half) / 32);
      store_element(inputs[input].data(), of_tables, i, input == cosines ? std::cos(angle) : std::sin(angle));
    }
  }
  if (!is_packed && dice.coin()) return;
  std::vector<std::int64_t> of_tokens;
  for (std::int64_t i = 0; i < tokens; ++i) of_tokens.push_back(dice.up_to(kPositions + 2) - 1);
  inputs[positions] = whole_numbers(dice.one_of({DType::i32, DType::i64}), of_tokens);
}

// What a call wrote: memory of out, with what is between rows, and scales.
struct QuantizedMemory {
  HostTensor out, scale;
};

inline QuantizedMemory expected_of(const QuantizeCase& c) {
  QuantizedMemory memory{c.poisoned_out(), c.poisoned_scale()};
  std::vector<Tensor> here;
  for (const HostTensor& input : c.inputs) here.push_back(input.view());
  const Tensor x = c.view(here[QuantizeCase::x].data, here[QuantizeCase::x].dtype);
  reference::quantize(x, c.view(memory.out.data(), c.stored), memory.scale.view(), c.options_of(here));
  return memory;
}

// Where two of 8 bits are apart by more than roundings explain: a number half way may become either neighbour; where a
// turned element was rounded the other way, all that are rotated with it move by a share of its last digit. Few do.
inline std::string difference(const QuantizeCase& c, const QuantizedMemory& found, const QuantizedMemory& expected) {
  const double of_scales = c.turns() ? 0x1p-7 : 0x1p-20;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(expected.scale.element_count()); ++i) {
    const double a = load_element(found.scale.data(), DType::f32, i),
                 b = load_element(expected.scale.data(), DType::f32, i);
    if (!(std::abs(a - b) <= of_scales * b))
      return "scale " + std::to_string(i) + ": " + std::to_string(a) + " and not " + std::to_string(b);
  }
  const auto count = static_cast<std::int64_t>(expected.out.element_count());
  std::int64_t apart = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double a = load_element(found.out.data(), c.stored, i), b = load_element(expected.out.data(), c.stored, i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const bool is_e5m2 = c.stored == DType::e5m2;
    const int smallest = is_e5m2 ? -14 : -6, mantissa_bits = is_e5m2 ? 2 : 3;
    const double step = std::exp2(std::max(std::ilogb(std::max(std::abs(a), std::abs(b))), smallest) - mantissa_bits);
    const double moved = c.turns() && c.options.rotation_seed ? (is_e5m2 ? 64 : 0.5) : 0;
    if (!(std::abs(a - b) <= step + moved))
      return "element " + std::to_string(i) + ": " + std::to_string(a) + " and not " + std::to_string(b);
    ++apart;
  }
  return apart * 50 <= count + 100 ? "" : std::to_string(apart) + " elements of " + std::to_string(count);
}

}  // namespace flashjit::tests
