// SPDX-License-Identifier: Apache-2.0
#include "generator/functions.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "flashjit/error.h"
#include "generator/dtype.h"
#include "generator/function_text.h"

namespace flashjit {
namespace generator {
namespace {

template <typename... Args>
[[noreturn]] void reject(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::invalid_argument, fmt::format(format, std::forward<Args>(args)...));
}

constexpr int kMaxRank = 4;
constexpr std::size_t kStructAlignment = 8;

constexpr DType kRealDTypes[] = {DType::f16, DType::bf16, DType::f32};
constexpr DType kBoolean[] = {DType::boolean};
constexpr DType kI32[] = {DType::i32};
constexpr DType kI64[] = {DType::i64};

struct KindRow {
  const char* word;
  const char* name;  // of the struct in the namespace `text`
  bool scores;       // it makes a score, and not a yes or no
  // Of the library's: the function, and its one capture, which has the name of the kind.
  const char* text = nullptr;
  int rank = 0;
  std::span<const DType> dtypes = {};
};
// By value of FunctionKind. What the tensors must be: include/flashjit/attention.h.
constexpr KindRow kKinds[] = {
    {"score", "ScoreText", true},
    {"mask", "MaskText", false},
    {"bias", "BiasText", true, "score + bias(batch, head, query, key)", 4, kRealDTypes},
    {"boolean_mask", "BooleanMaskText", false, "boolean_mask(batch, head, query, key)", 4, kBoolean},
    {"documents", "DocumentsText", false,
     "const int own = query + (seqlen_kv - seqlen_q);\n"
     "const unsigned seen = own >= 0;\n"
     "return static_cast<unsigned>(documents(batch, own) ^ documents(batch, key)) < seen;",
     2, kI32},
    {"tree", "TreeText", false,
     "const int node = key - (seqlen_kv - seqlen_q);\n"
     "return node < 0 || (tree(batch, query, node / 64) >> node % 64 & 1) != 0;",
     3, kI64},
    {"dropout_mask", "DropoutMaskText", false, "dropout_mask(batch, head, query, key)", 4, kBoolean}};
static_assert(std::size(kKinds) == kFunctionKinds);
const KindRow& row_of(FunctionKind kind) noexcept { return kKinds[static_cast<std::size_t>(kind)]; }

// The type of templates/function/tensor.cuh.
const char* element_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return "F16";
    case DType::bf16:
      return "Bf16";
    case DType::i32:
      return "I32";
    case DType::i64:
      return "I64";
    case DType::boolean:
      return "Boolean";
    default:
      break;
  }
  return "F32";
}

std::string member_type(const CaptureType& type) {
  if (type.rank == CaptureType::kNumber) return type.dtype == DType::f32 ? "float" : "int";
  return fmt::format("Tensor<{}, {}, {}>", element_of(type.dtype), type.rank, type.packed);
}

struct Layout {
  std::size_t bytes, alignment;
};

// Of a member, as templates/function/tensor.cuh has it: the address, strides and sizes of a tensor.
Layout layout_of(const CaptureType& type) {
  if (type.rank == CaptureType::kNumber) return {4, 4};
  const std::size_t bytes = 8 + static_cast<std::size_t>(type.rank) * (8 + 4);
  return {(bytes + 7) / 8 * 8, 8};
}

std::size_t round_up(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

void lay_out(FunctionText& function) {
  std::size_t at = 0;
  for (const CaptureType& type : function.captures) {
    const Layout layout = layout_of(type);
    at = round_up(at, layout.alignment);
    function.offsets.push_back(at);
    at += layout.bytes;
  }
  function.bytes = round_up(std::max<std::size_t>(at, 1), kStructAlignment);
}

// All that tells functions apart, without a way to read one part as another: names have no line breaks.
std::string key_of(FunctionKind kind, const std::string& text, const std::vector<CaptureType>& captures) {
  std::string key = fmt::format("{} {}\n", word_of(kind), captures.size());
  for (const CaptureType& type : captures)
    key += fmt::format("{} {} {} {}\n", type.name, static_cast<int>(type.dtype), type.rank, type.packed);
  return key + text;
}

std::string digest_of(const std::string& key) {
  const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
  return fmt::format("{:016x}", hash.high64 ^ hash.low64);
}

void check_capture(const char* word, const CaptureType& type) {
  if (const std::string why = why_no_capture_name(type.name); !why.empty()) reject("{}: capture {}", word, why);
  if (!may_be_captured(type.dtype))
    reject("{}: capture {}: dtype must be {}, was {}", word, type.name, captured_dtypes(), to_string(type.dtype));
  if (type.rank > kMaxRank)
    reject("{}: capture {}: rank must be at most {}, was {}", word, type.name, kMaxRank, type.rank);
}

void check(const char* word, const std::string& text, const std::vector<CaptureType>& captures) {
  if (const std::string why = why_no_text(text); !why.empty()) reject("{}: {}", word, why);
  if (captures.size() > kMaxCaptures)
    reject("{}: must have at most {} captures, had {}", word, kMaxCaptures, captures.size());
  for (const CaptureType& type : captures) {
    check_capture(word, type);
    const auto same_name = [&](const CaptureType& other) { return other.name == type.name; };
    if (std::count_if(captures.begin(), captures.end(), same_name) > 1)
      reject("{}: capture {}: must be given once, was given twice", word, type.name);
    if (!uses_name(text, type.name)) reject("{}: capture {}: must be used in the text, was not", word, type.name);
  }
}

bool is_body(const std::string& text) { return uses_name(text, "return"); }

// All functions of the process.
class Functions {
 public:
  const FunctionText& find(FunctionKind kind, const std::string& text, std::vector<CaptureType> captures) {
    const std::string key = key_of(kind, text, captures);
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = functions_.find(key); found != functions_.end()) return *found->second;
    }
    if (is_users(kind)) check(word_of(kind), text, captures);
    auto made =
        std::make_unique<FunctionText>(FunctionText{kind, text, std::move(captures), 0, digest_of(key), {}, 0, {}, {}});
    lay_out(*made);
    if (kind == FunctionKind::score && !is_body(text)) made->formula = formula_of(text, made->captures);
    for (const CaptureType& type : made->captures)
      made->labels.push_back(fmt::format("{}: capture {}", word_of(kind), type.name));
    const std::lock_guard lock(mutex_);
    if (functions_.size() >> kFunctionNumberBits != 0)
      reject("{}: a process must have at most {} functions, had them", word_of(kind), functions_.size());
    made->number = static_cast<std::uint32_t>(functions_.size());
    return *functions_.try_emplace(key, std::move(made)).first->second;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<const FunctionText>> functions_;
};

// Never destroyed: what other static objects hold stays valid.
Functions& functions() {
  static auto* const all = new Functions;
  return *all;
}

// Of all library's features.
class LibraryFunctions {
 public:
  LibraryFunctions() {
    for (int kind = 0; kind < kFunctionKinds; ++kind) {
      const KindRow& row = kKinds[kind];
      for (const DType dtype : row.dtypes)
        functions_[kind][static_cast<std::size_t>(dtype)] =
            &functions().find(static_cast<FunctionKind>(kind), row.text, {{row.word, dtype, row.rank}});
    }
  }
  const FunctionText& at(FunctionKind kind, DType dtype) const {
    return *functions_[static_cast<std::size_t>(kind)].at(static_cast<std::size_t>(dtype));
  }

 private:
  std::array<std::array<const FunctionText*, 6>, kFunctionKinds> functions_{};
};

// A member of the struct: a part of its formula.
std::string render_part(const char* type, const char* name, const char* arguments, const std::string& value) {
  return fmt::format("  __device__ __forceinline__ {0} {1}({2}) const {{ return static_cast<{0}>({3}); }}\n", type,
                     name, arguments, value);
}

// What templates/parts/score/ takes of it.
std::string render(const Formula& formula) {
  constexpr const char* kRow = "int batch, int head, RowPosition query, int seqlen_q, int seqlen_kv";
  const auto or_else = [](const std::string& text, const char* other) { return text.empty() ? other : text; };
  switch (formula.kind) {
    case Formula::Kind::none:
      break;
    case Formula::Kind::sloping:
      return fmt::format("  static constexpr bool kFormulaOfQuery = {}, kFormulaHasRest = {};\n", formula.of_query,
                         !formula.rest.empty()) +
             render_part("float", "formula_slope", kRow, formula.slope) +
             render_part("int", "formula_from", kRow, or_else(formula.from, "0")) +
             render_part("float", "formula_rest", kRow, or_else(formula.rest, "0"));
    case Formula::Kind::capping:
      return render_part("float", "formula_outer", "", or_else(formula.outer, "1")) +
             render_part("float", "formula_inner", "", or_else(formula.inner, "1"));
  }
  return {};
}

std::string signature_of(FunctionKind kind) {
  constexpr const char* kPlace = "int batch, int head, RowPosition query, Position key, int seqlen_q, int seqlen_kv";
  if (row_of(kind).scores)
    return fmt::format("template <class Number> __device__ __forceinline__ Number operator()(Number score, {}) const",
                       kPlace);
  return fmt::format("__device__ __forceinline__ bool operator()({}) const", kPlace);
}

}  // namespace

const char* word_of(FunctionKind kind) noexcept { return row_of(kind).word; }

bool is_users(FunctionKind kind) noexcept { return !row_of(kind).text; }

const FunctionText& library_function(FunctionKind kind, DType dtype) {
  static const LibraryFunctions all;
  return all.at(kind, dtype);
}

std::span<const DType> library_dtypes(FunctionKind kind) noexcept { return row_of(kind).dtypes; }

CaptureType type_of(const Capture& capture) {
  const auto* tensor = std::get_if<Tensor>(&capture.value);
  if (!tensor) {
    const bool is_real = std::holds_alternative<float>(capture.value);
    return {capture.name, is_real ? DType::f32 : DType::i32, CaptureType::kNumber};
  }
  const int rank = tensor->shape.size();
  const bool packed =
      rank == 0 || rank != tensor->strides.size() || tensor->shape[rank - 1] <= 1 || tensor->strides[rank - 1] == 1;
  return {capture.name, tensor->dtype, rank, packed};
}

const FunctionText& find_function(FunctionKind kind, const std::string& text, std::span<const Capture> captures) {
  std::vector<CaptureType> types;
  for (const Capture& capture : captures) types.push_back(type_of(capture));
  return functions().find(kind, text, std::move(types));
}

std::string render(const FunctionText& function, bool is_differentiated) {
  // A variable of float would lose the derivative of what a text puts there.
  const char *const define = is_differentiated ? "#define float Number\n#define double Number\n" : "",
                    *const undefine = is_differentiated ? "#undef float\n#undef double\n" : "";
  std::string members;
  for (const CaptureType& type : function.captures) members += fmt::format("  {} {};\n", member_type(type), type.name);
  // What opens and closes the function has names of its own as files: a compiler finds there what is wrong with the
  // text as a whole, and what it lacks at its end. A way through a body that returns nothing is an error, and no
  // warning.
  const char* const file = word_of(function.kind);
  return fmt::format(
      "namespace text {{\nstruct {} {{\n{}"
      "#pragma nv_diag_error 117,940\n"
      "  {} {{\n{}"
      "#line 1 \"{}{}\"\n{}\n"
      "#line 1 \"{}\"\n{}\n"
      "#line 1 \"{}{}\"\n{}}}\n"
      "#line 1 \"generated\"\n{}"
      "#pragma nv_diag_default 117,940\n"
      "{}}};\n}}\n",
      row_of(function.kind).name, members, signature_of(function.kind), define, kBeginOfText, file,
      is_body(function.text) ? "" : "return (", file, function.text, kEndOfText, file,
      is_body(function.text) ? "" : "); ", undefine, render(function.formula));
}

}  // namespace generator

namespace {

using generator::FunctionKind;

const generator::FunctionText& find(FunctionKind kind, const std::string& text, const std::vector<Capture>& captures) {
  return generator::find_function(kind, text, captures);
}

// By their names, so that the order in which they were given makes no other function.
std::vector<Capture> in_order(std::vector<Capture> captures) {
  std::stable_sort(captures.begin(), captures.end(),
                   [](const Capture& a, const Capture& b) { return a.name < b.name; });
  return captures;
}

}  // namespace

const std::string& Function::text() const noexcept { return source_->text; }

void Function::set(const Capture& capture) {
  const auto own = std::find_if(captures_.begin(), captures_.end(),
                                [&](const Capture& other) { return other.name == capture.name; });
  if (own == captures_.end())
    generator::reject("{}: capture {}: must be one of the text's, was none of them", generator::word_of(source_->kind),
                      capture.name);
  std::vector<Capture> changed = captures_;
  changed[static_cast<std::size_t>(own - captures_.begin())] = capture;
  source_ = &find(source_->kind, source_->text, changed);
  captures_ = std::move(changed);
}

Score::Score(const std::string& text, std::vector<Capture> captures)
    : Function(find(FunctionKind::score, text, in_order(captures)), in_order(captures)) {}

Mask::Mask(const std::string& text, std::vector<Capture> captures)
    : Function(find(FunctionKind::mask, text, in_order(captures)), in_order(captures)) {}

}  // namespace flashjit
