// SPDX-License-Identifier: Apache-2.0
// The instruction forms of tests/vectors: what each reads, how the emulator runs it, and how its results compare with
// those of hardware.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashjit/emulator.h"

namespace flashjit::vectors {

using Bytes = std::vector<std::uint8_t>;
using Json = nlohmann::json;

inline Bytes read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

inline Json read_json(const std::filesystem::path& path) {
  const Bytes bytes = read_bytes(path);
  return Json::parse(bytes.begin(), bytes.end());
}

// --- Comparison ------------------------------------------------------------------------------------------------------

// How results compare. Without an element all bytes must be equal, or those of some units.
struct Comparison {
  std::string element;                // "f16", "bf16", "f32", "f64"
  std::int64_t ulp = 0;               // neighbours apart
  double absolute = 0, relative = 0;  // else within the larger of these
  bool by_ulp = true;
  std::vector<std::size_t> units;  // of 16 bytes
};

inline Comparison comparison_of(const Json& json) {
  Comparison comparison;
  if (!json.is_object()) return comparison;
  comparison.element = json.value("element", std::string());
  comparison.ulp = json.value("ulp", std::int64_t{0});
  comparison.absolute = json.value("abs", 0.0);
  comparison.relative = json.value("rel", 0.0);
  comparison.by_ulp = json.contains("ulp");
  comparison.units = json.value("units", std::vector<std::size_t>());
  return comparison;
}

// A floating-point format; all have an implicit leading bit.
struct Format {
  int bytes = 4, fraction_bits = 23, bias = 127;

  int bits() const { return 8 * bytes; }
  std::uint64_t sign() const { return std::uint64_t{1} << (bits() - 1); }
  std::uint64_t infinity() const { return sign() - (std::uint64_t{1} << fraction_bits); }
};

inline Format format_of(const std::string& element) {
  if (element == "f16") return {2, 10, 15};
  if (element == "bf16") return {2, 7, 127};
  if (element == "f32") return {4, 23, 127};
  if (element == "f64") return {8, 52, 1023};
  throw std::runtime_error("no format " + element);
}

inline double value_of(const Format& format, std::uint64_t bits) {
  const std::uint64_t magnitude = bits & ~format.sign();
  const auto exponent = static_cast<int>(magnitude >> format.fraction_bits);
  const std::uint64_t fraction = magnitude & ((std::uint64_t{1} << format.fraction_bits) - 1);
  const std::uint64_t leading = exponent == 0 ? 0 : std::uint64_t{1} << format.fraction_bits;
  const double value =
      std::ldexp(static_cast<double>(fraction | leading), std::max(exponent, 1) - format.bias - format.fraction_bits);
  return (bits & format.sign()) != 0 ? -value : value;
}

// Position among all numbers of the format; both zeros have the same, so a caller who minds the sign compares bits.
inline std::int64_t position(const Format& format, std::uint64_t bits) {
  const auto magnitude = static_cast<std::int64_t>(bits & ~format.sign());
  return (bits & format.sign()) != 0 ? -magnitude : magnitude;
}

inline bool alike(const Comparison& comparison, std::uint64_t got, std::uint64_t expected) {
  if (got == expected) return true;
  const Format format = format_of(comparison.element);
  const std::uint64_t got_magnitude = got & ~format.sign(), expected_magnitude = expected & ~format.sign();
  if (got_magnitude > format.infinity() || expected_magnitude > format.infinity())
    return got_magnitude > format.infinity() && expected_magnitude > format.infinity();  // NaN, of any bits
  if (got_magnitude == format.infinity() || expected_magnitude == format.infinity()) return false;
  if (comparison.by_ulp)
    return comparison.ulp > 0 && std::abs(position(format, got) - position(format, expected)) <= comparison.ulp;
  const double wanted = value_of(format, expected);
  return std::abs(value_of(format, got) - wanted) <=
         std::max(comparison.absolute, comparison.relative * std::abs(wanted));
}

inline std::uint64_t element_at(const Bytes& bytes, std::size_t index, int size) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes.data() + index * static_cast<std::size_t>(size), static_cast<std::size_t>(size));
  return bits;
}

// What of a result is compared.
inline Bytes compared_part(const Comparison& comparison, const Bytes& bytes) {
  constexpr std::size_t kUnit = 16;
  if (comparison.units.empty()) return bytes;
  Bytes part;
  for (const std::size_t unit : comparison.units)
    for (std::size_t i = 0; i < kUnit; ++i) part.push_back(bytes.at(unit * kUnit + i));
  return part;
}

// Of parts that are compared: empty, or how many elements differ and the first that does.
inline std::string difference_of_parts(const Comparison& comparison, const Bytes& got, const Bytes& expected) {
  if (got.size() != expected.size()) return fmt::format("{} bytes, not {}", got.size(), expected.size());
  const int size = comparison.element.empty() ? (got.size() % 4 == 0 ? 4 : 1) : format_of(comparison.element).bytes;
  const std::size_t count = got.size() / static_cast<std::size_t>(size);
  std::size_t different = 0, first = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t a = element_at(got, i, size), b = element_at(expected, i, size);
    if (comparison.element.empty() ? a == b : alike(comparison, a, b)) continue;
    if (different++ == 0) first = i;
  }
  if (different == 0) return {};
  return fmt::format("{} of {} elements of {} bytes differ, the first is {}: {:#x}, on hardware {:#x}", different,
                     count, size, first, element_at(got, first, size), element_at(expected, first, size));
}

inline std::string difference(const Comparison& comparison, const Bytes& got, const Bytes& expected) {
  return difference_of_parts(comparison, compared_part(comparison, got), compared_part(comparison, expected));
}

// --- Forms -----------------------------------------------------------------------------------------------------------

struct Form {
  std::string name, ptx, entry;
  emulator::Extent grid, block;
  Bytes input, initial_output;
  Comparison comparison;
  Json maps;
  std::string finding;  // the kind of what must be found; empty for nothing
  std::string refused;  // hardware's error; empty where there are results
};

// The head of the file with one of its entries, so that a form fails alone.
inline std::string only_entry(const std::string& file, const std::string& entry) {
  constexpr std::string_view kBegin = ".visible .entry ";
  const std::size_t head = file.find(kBegin);
  const std::size_t begin = file.find(std::string(kBegin) + entry + "(");
  if (begin == std::string::npos) throw std::runtime_error("no entry " + entry);
  return file.substr(0, head) + file.substr(begin, file.find(kBegin, begin + 1) - begin);
}

inline emulator::Extent extent_of(const Json& json) {
  emulator::Extent extent{json.at(0)};
  if (json.size() > 1) extent.y = json.at(1);
  if (json.size() > 2) extent.z = json.at(2);
  return extent;
}

inline Bytes gather(const Bytes& pool, const Json& parts) {
  Bytes bytes;
  for (const Json& part : parts) {
    const auto begin = pool.begin() + part.at(0).get<std::ptrdiff_t>();
    bytes.insert(bytes.end(), begin, begin + part.at(1).get<std::ptrdiff_t>());
  }
  return bytes;
}

inline std::vector<Form> read_forms(const std::filesystem::path& data) {
  constexpr std::uint8_t kPoison = 0xa5;
  const Bytes pool = read_bytes(data / "inputs.bin");
  std::map<std::string, std::string> files;
  std::vector<Form> forms;
  const Json index = read_json(data / "index.json");
  for (const Json& json : index.at("forms")) {
    std::string& file = files[json.at("ptx")];
    if (file.empty()) {
      const Bytes bytes = read_bytes(data / json.at("ptx").get<std::string>());
      file.assign(bytes.begin(), bytes.end());
    }
    Form form;
    form.name = json.at("name");
    form.entry = json.at("entry");
    form.ptx = only_entry(file, form.entry);
    if (json.contains("grid")) form.grid = extent_of(json.at("grid"));
    form.block = extent_of(json.at("block"));
    form.input = gather(pool, json.at("in"));
    form.initial_output = gather(pool, json.value("initial_out", Json::array()));
    form.initial_output.resize(json.at("out_bytes"), kPoison);
    form.comparison = comparison_of(json.value("compare", Json()));
    form.maps = json.value("maps", Json::array());
    form.finding = json.value("finding", std::string());
    form.refused = json.value("refused", std::string());
    forms.push_back(std::move(form));
  }
  return forms;
}

// --- Results of hardware ---------------------------------------------------------------------------------------------

struct Results {
  std::string device, digest;
  std::map<std::string, std::string> refused;  // errors, by the name of the form
  std::map<std::string, Bytes> outputs;        // by the name of the form, or of the attention problem
};

// `path` is without suffix.
inline Results read_results(const std::filesystem::path& path) {
  const Json json = read_json(path.string() + ".json");
  const Bytes bytes = read_bytes(path.string() + ".bin");
  Results results{json.at("device"), json.at("digest"), json.at("refused"), {}};
  for (const auto& [name, place] : json.at("results").items())
    results.outputs[name] = gather(bytes, Json::array({place}));
  return results;
}

// --- Execution -------------------------------------------------------------------------------------------------------

// Bytes at a multiple of 256, as device memory is.
class Buffer {
 public:
  explicit Buffer(const Bytes& content) : size_(content.size()), blocks_(content.size() / sizeof(Block) + 1) {
    std::copy(content.begin(), content.end(), data());
  }

  std::uint8_t* data() { return blocks_.front().bytes; }
  std::size_t size() const { return size_; }
  Bytes content() { return Bytes(data(), data() + size_); }

 private:
  struct alignas(256) Block {
    std::uint8_t bytes[256];
  };
  std::size_t size_;
  std::vector<Block> blocks_;
};

template <class T, std::size_t N>
void fill(std::array<T, N>& array, const Json& json) {
  std::copy_n(json.get<std::vector<T>>().begin(), json.size(), array.begin());
}

inline emulator::TensorMap tensor_map_of(const Json& json, Buffer& input, Buffer& output) {
  using emulator::TensorElement;
  using emulator::TensorSwizzle;
  static const std::map<std::string, TensorElement> kElements{
      {"u8", TensorElement::u8},    {"u16", TensorElement::u16}, {"u32", TensorElement::u32},
      {"s32", TensorElement::s32},  {"u64", TensorElement::u64}, {"s64", TensorElement::s64},
      {"f16", TensorElement::f16},  {"f32", TensorElement::f32}, {"f64", TensorElement::f64},
      {"bf16", TensorElement::bf16}};
  static const std::map<std::string, TensorSwizzle> kSwizzles{{"none", TensorSwizzle::none},
                                                              {"bytes_32", TensorSwizzle::bytes_32},
                                                              {"bytes_64", TensorSwizzle::bytes_64},
                                                              {"bytes_128", TensorSwizzle::bytes_128}};
  emulator::TensorMapDescription description;
  description.element = kElements.at(json.at("element"));
  description.rank = static_cast<int>(json.at("sizes").size());
  description.address = (json.at("buffer") == "in" ? input : output).data();
  fill(description.sizes, json.at("sizes"));
  fill(description.byte_strides, json.at("byte_strides"));
  fill(description.box, json.at("box"));
  fill(description.element_strides, json.at("element_strides"));
  description.swizzle = kSwizzles.at(json.at("swizzle"));
  description.fill = json.at("fill") == "nan" ? emulator::TensorFill::nan : emulator::TensorFill::zeros;
  return emulator::encode_tensor_map(description);
}

struct Outcome {
  Bytes output;
  emulator::Report report;
};

// Throws what the emulator throws.
inline Outcome run(const Form& form, std::uint64_t seed) {
  Buffer input(form.input), output(form.initial_output);
  emulator::Memory memory;
  memory.add_read_only("in", input.data(), input.size());
  memory.add("out", output.data(), output.size());
  emulator::Launch launch;
  launch.grid = form.grid;
  launch.block = form.block;
  launch.seed = seed;
  if (form.maps.empty()) {
    launch.set_parameters(input.data(), output.data());
  } else {
    launch.set_parameters(input.data(), output.data(), tensor_map_of(form.maps.at(0), input, output));
  }
  Outcome outcome;
  outcome.report = emulator::Program(form.ptx).run(form.entry, launch, memory);
  outcome.output = output.content();
  return outcome;
}

}  // namespace flashjit::vectors
