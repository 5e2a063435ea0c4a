// SPDX-License-Identifier: Apache-2.0
#include "generator/formula.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "generator/functions.h"
#include "generator/text_pieces.h"

namespace flashjit::generator {
namespace {

// Of a text: as it is read, what is nested takes the stack, and parts are copied into wholes.
constexpr std::size_t kMaxFormulaBytes = 1024;
constexpr int kMaxDepth = 32;

// The value of a part of a text, and what it may depend on.
struct Term {
  enum class Is {
    unknown,
    row,      // text: it does not depend on score and key
    key,      // key + text, or -key + text, a whole number
    line,     // slope * (key + from) + text
    product,  // score * text
    sloping,  // score + slope * (key + from) + text
    capped,   // text * tanh(inner * score)
  };

  Term(Is kind = Is::unknown, std::string its_text = {}) : is(kind), text(std::move(its_text)) {}

  Is is;
  std::string text, slope, from, inner;  // empty: a term that is not there, a factor of 1
  bool real = true;                      // of a row: no whole number
  bool negative = false;                 // of a key
  bool of_place = false, of_query = false;

  bool is_row() const { return is == Is::row; }
};

std::string negated(const std::string& text) { return fmt::format("(-{})", text.empty() ? "1.f" : text); }
std::string combined(const std::string& a, char sign, const std::string& b) {
  return fmt::format("({} {} {})", a, sign, b);
}

// As texts of sums are joined where one of them may be missing.
std::string sum(const std::string& a, char sign, const std::string& b) {
  if (b.empty()) return a;
  if (a.empty()) return sign == '-' ? negated(b) : b;
  return combined(a, sign, b);
}
std::string product(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return a.empty() ? b : a;
  return combined(a, '*', b);
}

// What has the kind and texts of one, and depends on what both depend on.
Term joined(Term of, const Term& other) {
  of.of_place |= other.of_place, of.of_query |= other.of_query;
  return of;
}

Term negate(Term of) {
  switch (of.is) {
    case Term::Is::row:
    case Term::Is::product:
    case Term::Is::capped:
      of.text = negated(of.text);
      return of;
    case Term::Is::key:
      of.negative = !of.negative;
      of.text = sum({}, '-', of.text);
      return of;
    case Term::Is::line:
      of.slope = negated(of.slope);
      of.text = sum({}, '-', of.text);
      return of;
    case Term::Is::sloping:  // of a negative score
    case Term::Is::unknown:
      break;
  }
  return {};
}

// slope * (key + from): -key + text is -(key - text). On what from depends is not told.
Term line_of(const std::string& slope, const Term& key) {
  Term line = key;
  line.is = Term::Is::line;
  line.slope = key.negative ? negated(slope) : slope;
  line.from = key.negative ? sum({}, '-', key.text) : key.text;
  line.text.clear();
  line.of_query = false;
  return line;
}

Term times_row(const Term& row, Term of) {
  switch (of.is) {
    case Term::Is::row:
      of.text = combined(row.text, '*', of.text);
      of.real |= row.real;
      return joined(of, row);
    case Term::Is::key:
      return row.real ? joined(line_of(row.text, of), row) : Term{};
    case Term::Is::line:
      of.slope = product(row.text, of.slope);
      if (!of.text.empty()) of.text = product(row.text, of.text);
      return joined(of, row);
    case Term::Is::product:
    case Term::Is::capped:
      of.text = product(row.text, of.text);
      return joined(of, row);
    case Term::Is::sloping:
    case Term::Is::unknown:
      break;
  }
  return {};
}

Term times(const Term& a, const Term& b) {
  return a.is_row() ? times_row(a, b) : b.is_row() ? times_row(b, a) : Term{};
}

Term over(const Term& a, const Term& row) {
  if (!row.is_row()) return {};
  if (a.is_row()) {
    Term quotient = joined(a, row);
    quotient.text = combined(a.text, '/', row.text), quotient.real |= row.real;
    return quotient;
  }
  // Of whole numbers a quotient is another one.
  if (a.is == Term::Is::key && !row.real) return {};
  Term reciprocal = row;
  reciprocal.text = combined("1.f", '/', row.text), reciprocal.real = true;
  return times_row(reciprocal, a);
}

Term plus_row(Term of, char sign, const Term& row) {
  const bool takes =
      of.is == Term::Is::line || of.is == Term::Is::sloping || of.is_row() || (of.is == Term::Is::key && !row.real);
  if (of.is == Term::Is::product && of.text.empty()) {  // the score itself
    of.is = Term::Is::sloping;
    of.slope = "0.f";
  } else if (!takes) {
    return {};
  }
  of.real |= of.is_row() && row.real;
  of.text = sum(of.text, sign, row.text);
  return joined(of, row);
}

Term plus_line(const Term& score, char sign, const Term& line) {
  if (score.is != Term::Is::product || !score.text.empty()) return {};
  Term sloping = joined(sign == '-' ? negate(line) : line, score);
  sloping.is = Term::Is::sloping;
  return sloping;
}

Term plus(const Term& a, char sign, const Term& b) {
  if (b.is_row()) return plus_row(a, sign, b);
  if (a.is_row()) return plus_row(sign == '-' ? negate(b) : b, '+', a);
  if (b.is == Term::Is::line) return plus_line(a, sign, b);
  if (a.is == Term::Is::line && sign == '+') return plus_line(b, sign, a);
  return {};
}

// Reads an expression as C++ does. What it does not know makes all of it unknown.
class Reader {
 public:
  Reader(std::string_view text, const std::vector<CaptureType>& captures) : pieces_(text), captures_(captures) {
    go_on();
  }

  Term read() {
    Term all = read_sum();
    return piece_.empty() ? all : Term{};
  }

 private:
  void go_on() { piece_ = pieces_.next(); }
  bool is(char c) const { return piece_.size() == 1 && piece_[0] == c; }
  // Alone: not one half of another operator.
  bool is_sign(char c) const { return is(c) && pieces_.following() != c && pieces_.following() != '='; }
  bool take(char c) {
    if (!is(c)) return false;
    go_on();
    return true;
  }

  Term read_sum() {
    Term all = read_product();
    while (is_sign('+') || is_sign('-')) {
      const char sign = piece_[0];
      go_on();
      all = plus(all, sign, read_product());
    }
    return all;
  }

  Term read_product() {
    Term all = read_factor();
    while (is_sign('*') || is_sign('/')) {
      const bool divides = is('/');
      go_on();
      all = divides ? over(all, read_factor()) : times(all, read_factor());
    }
    return all;
  }

  Term read_factor() {
    if (++depth_ > kMaxDepth) return stop();
    Term factor = read_factor_of_depth();
    --depth_;
    return factor;
  }

  Term read_factor_of_depth() {
    if (is_sign('-')) {
      go_on();
      return negate(read_factor());
    }
    if (take('(')) {
      const Term inside = read_sum();
      return take(')') ? inside : stop();
    }
    if (piece_.empty()) return stop();
    if (is_digit(piece_[0])) return read_number();
    return is_letter(piece_[0]) ? read_name() : stop();
  }

  Term read_number() {
    std::string_view digits = piece_;
    const bool is_float = digits.ends_with('f');
    if (is_float) digits.remove_suffix(1);
    const auto points = std::count(digits.begin(), digits.end(), '.');
    const bool is_usual = std::all_of(digits.begin(), digits.end(), [](char c) { return is_digit(c) || c == '.'; });
    // An octal number, too, begins with 0.
    if (!is_usual || points > 1 || (points == 0 && (is_float || (digits.size() > 1 && digits[0] == '0'))))
      return stop();
    return row_that_is_read(points == 1);
  }

  Term read_name() {
    const std::string name(piece_);
    if (name == "score") return that_is_read(Term::Is::product);
    if (name == "key") return that_is_read(Term::Is::key);
    if (name == "pi") return row_that_is_read(true);
    constexpr std::string_view kPlace[] = {"batch", "head", "query", "seqlen_q", "seqlen_kv"};
    if (std::find(std::begin(kPlace), std::end(kPlace), name) != std::end(kPlace)) {
      Term place = row_that_is_read(false);
      place.of_place = true, place.of_query = name == "query";
      return place;
    }
    const auto capture =
        std::find_if(captures_.begin(), captures_.end(), [&](const CaptureType& type) { return type.name == name; });
    if (capture != captures_.end()) return read_capture(*capture);
    return read_function(name);
  }

  Term read_capture(const CaptureType& type) {
    if (type.rank == CaptureType::kNumber) return row_that_is_read(type.dtype == DType::f32);
    const bool is_real = type.dtype == DType::f16 || type.dtype == DType::bf16 || type.dtype == DType::f32;
    if (!is_real && type.dtype != DType::i32) return stop();
    Term value = read_call(type.rank);
    value.real = is_real;
    return value;
  }

  // Of one real number, but for tanh of a multiple of the score.
  Term read_function(const std::string& name) {
    constexpr std::string_view kFunctions[] = {"exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh"};
    if (std::find(std::begin(kFunctions), std::end(kFunctions), name) == std::end(kFunctions)) return stop();
    go_on();
    if (!take('(')) return stop();
    const Term of = read_sum();
    if (!take(')')) return stop();
    if (name == "tanh" && of.is == Term::Is::product) {
      Term capped = of;
      capped.is = Term::Is::capped;
      capped.inner = of.text, capped.text.clear();
      return capped;
    }
    if (!of.is_row() || !of.real) return stop();
    Term value = of;
    value.text = fmt::format("{}({})", name, of.text);
    return value;
  }

  // Of a tensor, whose name stands before it.
  Term read_call(int indices) {
    Term value{Term::Is::row, std::string(piece_)};
    go_on();
    if (!take('(')) return stop();
    value.text += '(';
    for (int i = 0; i < indices; ++i) {
      if (i > 0 && !take(',')) return stop();
      const Term index = read_sum();
      if (!index.is_row()) return stop();
      value.text += (i > 0 ? ", " : "") + index.text;
      value = joined(value, index);
    }
    if (!take(')')) return stop();
    value.text += ')';
    return value;
  }

  Term that_is_read(Term term) {
    go_on();
    return term;
  }
  Term row_that_is_read(bool is_real) {
    Term row{Term::Is::row, std::string(piece_)};
    row.real = is_real;
    return that_is_read(row);
  }
  // The rest of the text is not read.
  Term stop() {
    pieces_ = TextPieces("?");
    go_on();
    return {};
  }

  TextPieces pieces_;
  const std::vector<CaptureType>& captures_;
  std::string_view piece_;
  int depth_ = 0;
};

}  // namespace

Formula formula_of(std::string_view text, const std::vector<CaptureType>& captures) {
  if (text.size() > kMaxFormulaBytes) return {};
  const Term all = Reader(text, captures).read();
  Formula formula;
  if (all.is == Term::Is::sloping) {
    formula.kind = Formula::Kind::sloping;
    formula.slope = all.slope, formula.from = all.from, formula.rest = all.text;
    formula.of_query = all.of_query;
  } else if (all.is == Term::Is::capped && !all.of_place) {
    formula.kind = Formula::Kind::capping;
    formula.outer = all.text, formula.inner = all.inner;
  }
  return formula;
}

}  // namespace flashjit::generator
