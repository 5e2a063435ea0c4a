// SPDX-License-Identifier: Apache-2.0
#include "generator/function_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "generator/functions.h"
#include "generator/text_pieces.h"

namespace flashjit::generator {
namespace {

constexpr std::size_t kMaxNameBytes = 64;

// What a text has by these names without a capture (templates/function/), and what C++ has.
constexpr std::string_view kTaken[] = {
    "score",         "batch",       "head",        "query",      "key",       "seqlen_q",
    "seqlen_kv",     "infinity",    "pi",          "Number",     "Position",  "Magnitude",
    "Tensor",        "View",        "Real",        "F16",        "Bf16",      "F32",
    "I32",           "I64",         "RowPosition", "load_below", "Boolean",   "ScoreText",
    "MaskText",      "Index",       "IsWhole",     "Double",     "as_whole",  "RealOf",
    "Widest",        "Numbers",     "Result",      "atan2",      "fdim",      "fma",
    "fmax",          "fmin",        "fmod",

    "pow",           "text",        "abs",         "cos",        "exp",       "exp2",
    "log",           "log2",        "max",         "min",        "rsqrt",     "sigmoid",
    "sin",           "sqrt",        "tanh",        "alignas",    "alignof",   "and",
    "and_eq",        "asm",         "auto",        "bitand",     "bitor",     "bool",
    "break",         "case",        "catch",       "char",       "char16_t",  "char32_t",
    "char8_t",       "class",       "co_await",    "co_return",  "co_yield",  "compl",
    "concept",       "const",       "const_cast",  "consteval",  "constexpr", "constinit",
    "continue",      "decltype",    "default",     "delete",     "do",        "double",
    "dynamic_cast",  "else",        "enum",        "explicit",   "export",    "extern",
    "false",         "float",       "for",         "friend",     "goto",      "if",
    "inline",        "int",         "long",        "mutable",    "namespace", "new",
    "noexcept",      "not",         "not_eq",      "nullptr",    "operator",  "or",
    "or_eq",         "private",     "protected",   "public",     "register",  "reinterpret_cast",
    "requires",      "return",      "short",       "signed",     "sizeof",    "static",
    "static_assert", "static_cast", "struct",      "switch",     "template",  "this",
    "thread_local",  "throw",       "true",        "try",        "typedef",   "typeid",
    "typename",      "union",       "unsigned",    "using",      "virtual",   "void",
    "volatile",      "wchar_t",     "while",       "xor",        "xor_eq"};

// The members of a struct that is a formula (generator/functions.cpp).
constexpr std::string_view kMembers[] = {"formula_slope", "formula_from",    "formula_rest",   "formula_outer",
                                         "formula_inner", "kFormulaOfQuery", "kFormulaHasRest"};

// C++ has these for itself.
bool is_reserved(std::string_view name) {
  return name.find("__") != name.npos || (name.size() > 1 && name[0] == '_' && name[1] >= 'A' && name[1] <= 'Z');
}

char closing(char opening) { return opening == '(' ? ')' : opening == '[' ? ']' : '}'; }

// Of the characters that stand for themselves.
std::string why_not_character(char c, char following) {
  constexpr std::string_view kRefused = "#\"'\\@$`";
  if (kRefused.find(c) != kRefused.npos) return fmt::format("must not have '{}'", c);
  if (c == '%' && following == ':') return "must not have '%:'";
  if ((c == '<' && (following == '%' || following == ':')) || ((c == '%' || c == ':') && following == '>'))
    return fmt::format("must not have '{}{}'", c, following);
  if (c < ' ' || c > '~')
    return fmt::format("must be printable ASCII outside of comments, had byte 0x{:02x}", static_cast<unsigned char>(c));
  return {};
}

std::string why_not_name(std::string_view name) {
  if (name == "asm") return "must not have assembler, had 'asm'";
  if (is_reserved(name)) return fmt::format("must not have names that C++ reserves, had '{}'", name);
  return {};
}

}  // namespace

std::string why_no_text(std::string_view text) {
  if (text.size() > kMaxTextBytes) return fmt::format("must have at most {} bytes, had {}", kMaxTextBytes, text.size());
  // In comments, too: a compiler would end there, or go on to the next line.
  if (const std::size_t at = text.find('\0'); at != text.npos)
    return fmt::format("must not have NUL, had one at byte {}", at);
  if (text.find("\\\n") != text.npos || text.find("\\\r") != text.npos || text.ends_with('\\'))
    return "must not have '\\' at the end of a line";
  struct Open {
    char bracket;
    std::string place;
  };
  std::vector<Open> open;
  TextPieces pieces(text);
  bool is_empty = true, is_body = false;
  std::string first_end;  // of a statement
  for (std::string_view piece = pieces.next(); !piece.empty(); piece = pieces.next()) {
    is_empty = false;
    const char c = piece[0];
    if (is_digit(c)) continue;
    is_body |= piece == "return";
    if (c == ';' && first_end.empty()) first_end = pieces.place();
    const std::string why = is_letter(c) ? why_not_name(piece) : why_not_character(c, pieces.following());
    if (!why.empty()) return fmt::format("{} at {}", why, pieces.place());
    if (c == '(' || c == '[' || c == '{') open.push_back({c, pieces.place()});
    if (c != ')' && c != ']' && c != '}') continue;
    if (open.empty()) return fmt::format("must have balanced brackets, '{}' at {} closes none", c, pieces.place());
    if (closing(open.back().bracket) != c)
      return fmt::format("must have balanced brackets, '{}' at {} meets '{}' at {}", open.back().bracket,
                         open.back().place, c, pieces.place());
    open.pop_back();
  }
  if (pieces.ended_in_comment()) return "must end its comments, '/*' was left open";
  if (!open.empty())
    return fmt::format("must have balanced brackets, '{}' at {} is left open", open.back().bracket, open.back().place);
  if (!is_body && !first_end.empty())
    return fmt::format("must be an expression, or a body with 'return', had ';' at {} and no 'return'", first_end);
  return is_empty ? "must have a text, was empty" : "";
}

std::string why_no_capture_name(std::string_view name) {
  const bool is_identifier = !name.empty() && is_letter(name[0]) &&
                             std::all_of(name.begin(), name.end(), [](char c) { return is_letter(c) || is_digit(c); });
  if (!is_identifier || name.size() > kMaxNameBytes)
    return fmt::format("name: must be an identifier of 1 to {} letters, digits and '_', was \"{}\"", kMaxNameBytes,
                       name.substr(0, kMaxNameBytes));
  if (is_reserved(name)) return fmt::format("{}: must not be a name that C++ reserves", name);
  if (std::find(std::begin(kTaken), std::end(kTaken), name) != std::end(kTaken) ||
      std::find(std::begin(kMembers), std::end(kMembers), name) != std::end(kMembers))
    return fmt::format("{}: must not be a name that texts have already", name);
  return {};
}

bool uses_name(std::string_view text, std::string_view name) {
  TextPieces pieces(text);
  for (std::string_view piece = pieces.next(); !piece.empty(); piece = pieces.next())
    if (piece == name) return true;
  return false;
}

}  // namespace flashjit::generator
