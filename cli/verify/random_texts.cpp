// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/random_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace flashjit::cli {
namespace {

std::int64_t count_of(const Dims& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// Dimensions in any order, elements apart from each other, and now and then one that stands for all of a dimension.
Dims random_strides(Dice& dice, const Dims& shape) {
  Dims strides = shape;
  const bool is_reversed = dice.one_in(4);
  std::int64_t step = dice.one_in(2) ? 1 : dice.from_to(2, 3);
  for (int i = 0; i < shape.size(); ++i) {
    const int dim = is_reversed ? i : shape.size() - 1 - i;
    strides[dim] = step;
    step = step * shape[dim] + (dice.one_in(4) ? 1 : 0);
  }
  if (shape.size() > 0 && dice.one_in(4)) strides[static_cast<int>(dice.from_to(0, shape.size() - 1))] = 0;
  return strides;
}

// Where an element of packed number `index` is.
std::int64_t offset_of(const Tensor& tensor, std::int64_t index) {
  std::int64_t offset = 0;
  for (int dim = tensor.shape.size(); dim-- > 0; index /= tensor.shape[dim])
    offset += index % tensor.shape[dim] * tensor.strides[dim];
  return offset;
}

bool is_real(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32; }

double random_element(Dice& dice, DType dtype) {
  constexpr double kSteps = 32;
  if (dtype == DType::boolean) return static_cast<double>(dice.from_to(0, 1));
  if (!is_real(dtype)) return static_cast<double>(dice.from_to(-3, 3));
  return static_cast<double>(dice.from_to(-2 * 32, 2 * 32)) / kSteps;
}

// What must not be read: NaN, or a number that no score forgives.
double poison(DType dtype) {
  if (dtype == DType::boolean) return 1;
  return is_real(dtype) ? std::numeric_limits<double>::quiet_NaN() : 1e9;
}

CapturedTensor random_tensor(Dice& dice, const std::string& name, DType dtype, const Dims& shape) {
  const std::int64_t begin = dice.from_to(0, 5);
  Tensor view(nullptr, dtype, shape, random_strides(dice, shape));
  const std::int64_t count = count_of(shape);
  std::int64_t end = begin + 1;
  if (count > 0) end += offset_of(view, count - 1);
  HostTensor memory(dtype, {end + dice.from_to(0, 5)});
  for (std::size_t i = 0; i < memory.element_count(); ++i)
    store_element(memory.data(), dtype, static_cast<std::int64_t>(i), poison(dtype));
  view.data = static_cast<char*>(memory.data()) + begin * static_cast<std::int64_t>(size_of(dtype));
  for (std::int64_t i = 0; i < count; ++i)
    store_element(view.data, dtype, offset_of(view, i), random_element(dice, dtype));
  return {name, std::move(memory), view};
}

}  // namespace

void RandomTexts::add_score(bool may_be_nan) {
  captures_.clear();
  std::string text;
  switch (dice_.from_to(0, may_be_nan ? 9 : 8)) {
    case 0:
      text = fmt::format("score + {}", value());
      break;
    case 1:
      text = fmt::format("score * 0.5f - {}", value());
      break;
    case 2: {
      const std::string cap = real();
      text = fmt::format("{0} * tanh(score / {0}) + {1}", cap, value());
      break;
    }
    case 3:
      text = fmt::format("{} ? -infinity : score + {}", condition(), value());
      break;
    case 4:
      text = fmt::format("if ({}) return score;\nconst auto moved = score + {};\nreturn moved;", condition(), value());
      break;
    case 5:
      text = fmt::format("4 * sigmoid(score) + {}  // not above 4", value());
      break;
    case 6:
      text = fmt::format("{} ? score : score - {}", condition(), value());
      break;
    case 7:
      text = fmt::format("score - 0.03125f * {} * (query - key) + {}", tensor(), real());
      break;
    case 8:
      text = fmt::format("{0} * tanh({1}score / {0})", real(), dice_.one_in(2) ? "-" : "");
      break;
    default:
      text = fmt::format("query == {} && key == {} ? infinity - infinity : score", dice_.from_to(0, 20), number());
  }
  score_.emplace(text, std::exchange(captures_, {}));
}

void RandomTexts::add_mask() {
  captures_.clear();
  std::string text;
  switch (dice_.from_to(0, 9)) {
    case 0:
    case 1:
      text = condition();
      break;
    case 2:
    case 3:
      text = fmt::format("{} || {}", condition(), condition());
      break;
    case 4:
      text = fmt::format("abs(query - key) <= 8 * {}", number());
      break;
    case 5:
      text = fmt::format("query >= key || {}", condition());
      break;
    case 6:
      text = fmt::format("if ({}) return true;\nreturn {};", condition(), condition());
      break;
    case 7:
      text = "key / 64 == query / 64 || key < 16";  // whole blocks
      break;
    case 8:
      text = "query % 3 != 1";  // rows that see no key
      break;
    default:
      text = dice_.one_in(2) ? "false" : "true";
  }
  mask_.emplace(text, std::exchange(captures_, {}));
}

std::string RandomTexts::value() {
  switch (dice_.from_to(0, 6)) {
    case 0:
    case 1:
    case 2:
      return fmt::format("0.5f * float({})", tensor());
    case 3:
      return "0.03125f * abs(query - key)";
    case 4:
      return fmt::format("{} * float(key % {})", real(), number());
    case 5:
      return "float(head + batch) / 4";
    default:
      return "0.01f * float(seqlen_kv - key)";
  }
}

std::string RandomTexts::condition() {
  switch (dice_.from_to(0, 5)) {
    case 0:
    case 1:
      return fmt::format("float({}) > -0.5f", tensor());
    case 2:
      return fmt::format("(query + key) % {} != 0", number());
    case 3:
      return "key < 2 * query + 30";
    case 4:
      return "(key / 50 + head + batch) % 3 != 0";
    default:
      return fmt::format("key / {} % 2 == 0", number());
  }
}

std::string RandomTexts::tensor() {
  const std::pair<const char*, std::int64_t> places[] = {
      {"batch", shape_.batch}, {"head", shape_.num_heads_q}, {"query", shape_.seqlen_q}, {"key", shape_.seqlen_kv}};
  std::string indices;
  std::vector<std::int64_t> sizes;
  for (const auto& [place, size] : places) {
    if (dice_.one_in(2)) continue;
    indices += (indices.empty() ? "" : ", ") + std::string(place);
    sizes.push_back(dice_.one_in(4) ? dice_.from_to(0, size) : size);  // behind its end it is 0
  }
  const DType dtype =
      dice_.one_of<DType>({DType::f16, DType::bf16, DType::f32, DType::i32, DType::i64, DType::boolean});
  const std::string name = new_name();
  tensors_.push_back(random_tensor(dice_, name, dtype, Dims(sizes.data(), sizes.size())));
  captures_.emplace_back(name, tensors_.back().view);
  return fmt::format("{}({})", name, indices);
}

std::string RandomTexts::number() {
  return captures_.emplace_back(new_name(), static_cast<std::int32_t>(dice_.from_to(2, 20))).name;
}

std::string RandomTexts::real() {
  return captures_.emplace_back(new_name(), static_cast<double>(dice_.from_to(1, 16)) / 4).name;
}

// Of mask and score together no name is there twice, as their tensors are moved by name.
std::string RandomTexts::new_name() { return fmt::format("c{}", names_++); }

}  // namespace flashjit::cli
