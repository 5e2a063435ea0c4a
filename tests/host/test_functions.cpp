// SPDX-License-Identifier: Apache-2.0
// Users' functions before any compiler: which texts and captures are taken, and what tells functions apart. And after
// it: what of its log is told of them.
#include <doctest/doctest.h>

#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "flashjit/error.h"
#include "flashjit/function.h"
#include "generator/function_text.h"
#include "generator/functions.h"
#include "generator/templates.h"
#include "runtime/kernels/text_errors.h"

namespace {

using namespace flashjit;
using runtime::TextError;

template <class Make>
std::string refusal_of(const Make& make) {
  try {
    make();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  return "";
}

// Of a score's text; "" where it is taken.
std::string refusal(const std::string& text) {
  return refusal_of([&] { Score{text}; });
}

std::string refusal(const std::string& text, const std::vector<Capture>& captures) {
  return refusal_of([&] { Score(text, captures); });
}

float numbers[64];

}  // namespace

TEST_CASE("what compilers have to judge is taken") {
  for (const char* text : {"score", "score / 2", "return score;", "if (key > query) return -infinity; return score;",
                           "const Number twice = score * 2;\nreturn twice;", "foo(bar)", "score + 0x1.8p-3f - 1e-3f",
                           "{ int a[3] = {1, 2, 3}; return score + a[key % 3]; }", "a < b > c : d ? e % f", "?"}) {
    CAPTURE(std::string(text));
    CHECK(refusal(text) == "");
  }
  CHECK(Mask("key <= query").text() == "key <= query");
}

TEST_CASE("a text that says nothing is refused") {
  for (const char* text : {"", " ", "\n\t\r\n", "// score", "/* score */", " /**/ // \n"}) {
    CAPTURE(std::string(text));
    CHECK(refusal(text) == "score: must have a text, was empty");
  }
  CHECK(refusal_of([] { Mask(""); }) == "mask: must have a text, was empty");
}

TEST_CASE("brackets that would leave the function are refused, with their places") {
  CHECK(refusal("score + (1") == "score: must have balanced brackets, '(' at line 1, column 9 is left open");
  CHECK(refusal("score)") == "score: must have balanced brackets, ')' at line 1, column 6 closes none");
  CHECK(refusal("return score;}\nint evil() { return 1;") ==
        "score: must have balanced brackets, '}' at line 1, column 14 closes none");
  CHECK(refusal("(score]") ==
        "score: must have balanced brackets, '(' at line 1, column 1 meets ']' at line 1, column 7");
  CHECK(refusal("\n {\n[score}") ==
        "score: must have balanced brackets, '[' at line 3, column 1 meets '}' at line 3, column 7");
  CHECK(refusal("(score /* ) */") == "score: must have balanced brackets, '(' at line 1, column 1 is left open");
  CHECK(refusal("(score // )\n)") == "");
}

TEST_CASE("what a preprocessor reads is refused, with its place") {
  CHECK(refusal("#include <cstdio>\nscore") == "score: must not have '#' at line 1, column 1");
  CHECK(refusal("score\n  #define score 1") == "score: must not have '#' at line 2, column 3");
  CHECK(refusal("score \\\n + 1") == "score: must not have '\\' at the end of a line");
  CHECK(refusal("score \\\r\n + 1") == "score: must not have '\\' at the end of a line");
  CHECK(refusal("score // goes on \\\nscore") == "score: must not have '\\' at the end of a line");
  CHECK(refusal("return score; // \\") == "score: must not have '\\' at the end of a line");
  CHECK(refusal("score + \\u0041") == "score: must not have '\\' at line 1, column 9");
  CHECK(refusal("_Pragma (1)") == "score: must not have names that C++ reserves, had '_Pragma' at line 1, column 1");
}

TEST_CASE("statements without a return are refused, with the place of the first one's end") {
  CHECK(refusal("score;") ==
        "score: must be an expression, or a body with 'return', had ';' at line 1, column 6 and no 'return'");
  CHECK(refusal("// a;\nfloat x = score; x;") ==
        "score: must be an expression, or a body with 'return', had ';' at line 2, column 16 and no 'return'");
}

TEST_CASE("the order in which captures are given makes no other function") {
  const Score one("score + b - a", {{"b", 1.5}, {"a", 2}}), other("score + b - a", {{"a", 2}, {"b", 1.5}});
  CHECK(one.source() == other.source());
  REQUIRE(one.captures().size() == 2);
  CHECK(one.captures()[0].name == "a");
  CHECK(std::get<std::int32_t>(one.captures()[0].value) == 2);
  CHECK(std::get<float>(one.captures()[1].value) == 1.5f);
}

TEST_CASE("digraphs are refused, and comparisons and remainders beside other operators are not") {
  CHECK(refusal("%:define a") == "score: must not have '%:' at line 1, column 1");
  CHECK(refusal("score %:%: 1") == "score: must not have '%:' at line 1, column 7");
  CHECK(refusal("<% return score; %>") == "score: must not have '<%' at line 1, column 1");
  CHECK(refusal("score %> 1") == "score: must not have '%>' at line 1, column 7");
  CHECK(refusal("a<:0:>") == "score: must not have '<:' at line 1, column 2");
  CHECK(refusal("a 0:>") == "score: must not have ':>' at line 1, column 4");
  CHECK(refusal("a % 3 < b ? c : d > e") == "");
}

TEST_CASE("literals with quotes are refused") {
  CHECK(refusal("score + 'a'") == "score: must not have ''' at line 1, column 9");
  CHECK(refusal("\"score\"") == "score: must not have '\"' at line 1, column 1");
  CHECK(refusal("R\"(\n)\"") == "score: must not have '\"' at line 1, column 2");
  CHECK(refusal("score + 1'000") == "score: must not have ''' at line 1, column 10");
  for (const char* text : {"@", "$", "`"}) {
    CAPTURE(std::string(text));
    CHECK(refusal(text) == "score: must not have '" + std::string(text) + "' at line 1, column 1");
  }
}

TEST_CASE("assembler and names that C++ reserves are refused") {
  CHECK(refusal("asm(score)") == "score: must not have assembler, had 'asm' at line 1, column 1");
  CHECK(refusal("__asm(1)") == "score: must not have names that C++ reserves, had '__asm' at line 1, column 1");
  CHECK(refusal("score +\n a__b") == "score: must not have names that C++ reserves, had 'a__b' at line 2, column 2");
  CHECK(refusal("_Score") == "score: must not have names that C++ reserves, had '_Score' at line 1, column 1");
  CHECK(refusal("_score + asmodeus") == "");
}

TEST_CASE("bytes that are not printable ASCII are refused outside of comments, and NUL everywhere") {
  CHECK(refusal(std::string("a\0b", 3)) == "score: must not have NUL, had one at byte 1");
  CHECK(refusal(std::string("score // \0", 10)) == "score: must not have NUL, had one at byte 9");
  CHECK(refusal("score + \xc3\xa9") ==
        "score: must be printable ASCII outside of comments, had byte 0xc3 at line 1, column 9");
  CHECK(refusal("score\x1b") ==
        "score: must be printable ASCII outside of comments, had byte 0x1b at line 1, column 6");
  CHECK(refusal("score\f") == "score: must be printable ASCII outside of comments, had byte 0x0c at line 1, column 6");
}

TEST_CASE("comments may have anything") {
  CHECK(refusal("score  // # ' \" @ $ ` asm __x ( [ { %: \\ \xc3\xa9") == "");
  CHECK(refusal("/* # ' \" asm _Z ) \n\n } */ score /**/") == "");
  CHECK(refusal("score / 2 /* / * // */") == "");
  CHECK(refusal("score // /*") == "");
  CHECK(refusal("score /* open") == "score: must end its comments, '/*' was left open");
  CHECK(refusal("score /*/") == "score: must end its comments, '/*' was left open");
}

TEST_CASE("long texts are refused, at any length") {
  CHECK(refusal("score // " + std::string(generator::kMaxTextBytes - 9, 'x')) == "");
  CHECK(refusal(std::string(generator::kMaxTextBytes + 1, 'x')) == "score: must have at most 65536 bytes, had 65537");
  CHECK(refusal(std::string(1 << 20, '(')) == "score: must have at most 65536 bytes, had 1048576");
  CHECK(refusal(std::string(generator::kMaxTextBytes, '(')).starts_with("score: must have balanced brackets, '('"));
}

TEST_CASE("captures have names that the text uses, and that mean nothing else in it") {
  CHECK(refusal("score + a_1", {{"a_1", 1.0}}) == "");
  CHECK(refusal("score", {{"a", 1.0}}) == "score: capture a: must be used in the text, was not");
  CHECK(refusal("score // a", {{"a", 1.0}}) == "score: capture a: must be used in the text, was not");
  CHECK(refusal("score + ab", {{"a", 1.0}}) == "score: capture a: must be used in the text, was not");
  CHECK(refusal("score + 1a", {{"a", 1.0}}) == "score: capture a: must be used in the text, was not");
  CHECK(refusal("score + a", {{"a", 1.0}, {"a", 2}}) == "score: capture a: must be given once, was given twice");
  const std::string identifier = "must be an identifier of 1 to 64 letters, digits and '_'";
  CHECK(refusal("score", {{"", 1.0}}) == "score: capture name: " + identifier + ", was \"\"");
  for (const char* name : {"1a", "a b", "a+", "\xc3\xa9"}) {
    CAPTURE(std::string(name));
    CHECK(refusal("score", {{name, 1.0}}).starts_with("score: capture name: " + identifier));
  }
  CHECK(refusal("score + " + std::string(64, 'a'), {{std::string(64, 'a'), 1.0}}) == "");
  CHECK(refusal("score", {{std::string(65, 'a'), 1.0}}).starts_with("score: capture name: " + identifier));
  for (const char* name : {"__a", "a__", "_A"}) {
    CAPTURE(std::string(name));
    CHECK(refusal("score", {{name, 1.0}}) ==
          "score: capture " + std::string(name) + ": must not be a name that C++ reserves");
  }
  for (const char* name : {"score", "batch", "head", "query", "key", "seqlen_q", "seqlen_kv", "Number", "infinity",
                           "exp", "if", "return", "float", "template", "co_await", "and"}) {
    CAPTURE(std::string(name));
    CHECK(refusal("score", {{name, 1.0}}) ==
          "score: capture " + std::string(name) + ": must not be a name that texts have already");
  }
}

TEST_CASE("no capture takes the name of what the templates give to texts") {
  const std::regex definition(
      "(?:__forceinline__ (?:float|double|int|Magnitude|unsigned)|using|constexpr float) (\\w+)(?=[ (])");
  int found = 0;
  for (const char* file : {"function/math.cuh", "function/position.cuh", "function/tensor.cuh"}) {
    const std::string& text = generator::embedded_templates().files().at(file);
    for (std::sregex_iterator at(text.begin(), text.end(), definition), end; at != end; ++at) {
      const std::string name = at->str(1);
      CAPTURE(name);
      // Members of types that no function is a member of.
      const std::set<std::string> members{"Bits", "type", "value", "Value", "operator", "OtherWhole", "times"};
      CHECK((members.count(name) > 0 || generator::why_no_capture_name(name) != ""));
      ++found;
    }
  }
  CHECK(found > 25);
  for (const char* name : {"F16", "Bf16", "F32", "I32", "I64", "Boolean", "RowPosition"})
    CHECK(generator::why_no_capture_name(name) != "");  // types of other captures
}

TEST_CASE("captures are few, and their tensors have few dimensions") {
  std::string text = "score";
  std::vector<Capture> captures;
  for (int i = 0; i < 17; ++i) {
    const std::string name = "a" + std::to_string(i);
    text += " + " + name;
    if (i == 16) CHECK(refusal(text + "0", captures) == "");
    captures.emplace_back(name, i);
  }
  CHECK(refusal(text, captures) == "score: must have at most 16 captures, had 17");
  for (int rank = 0; rank <= 4; ++rank) {
    const std::vector<std::int64_t> sizes(static_cast<std::size_t>(rank), 2);
    CHECK(refusal("score + a()", {{"a", Tensor(numbers, DType::f32, Dims(sizes.data(), sizes.size()))}}) == "");
  }
  CHECK(refusal("score + a()", {{"a", Tensor(numbers, DType::f32, {1, 1, 1, 1, 1})}}) ==
        "score: capture a: rank must be at most 4, was 5");
  CHECK(refusal_of([] {
          Mask("a()", {{"a", Tensor(numbers, DType::f32, {1, 1, 1, 1, 1})}});
        }) == "mask: capture a: rank must be at most 4, was 5");
}

TEST_CASE("functions are equal when their texts and the types of their captures are") {
  const auto* const score = Score("score + a", {{"a", 1.0}}).source();
  CHECK(Score("score + a", {{"a", 2.0}}).source() == score);
  CHECK(Score("score + a", {{"a", 1}}).source() != score);
  CHECK(Score("score +  a", {{"a", 1.0}}).source() != score);
  CHECK(Mask("score + a", {{"a", 1.0}}).source() != score);
  const auto of_tensor = [](DType dtype, const Dims& shape, const Dims& strides) {
    return Score("score + a(0)", {{"a", Tensor(numbers, dtype, shape, strides)}}).source();
  };
  const auto* const packed = of_tensor(DType::f32, {3, 4}, {4, 1});
  CHECK(of_tensor(DType::f32, {5, 6}, {99, 1}) == packed);
  CHECK(of_tensor(DType::f32, {5, 1}, {1, 7}) == packed);  // of one element each row is contiguous
  CHECK(of_tensor(DType::f32, {3, 4}, {4, 2}) != packed);
  CHECK(of_tensor(DType::f16, {3, 4}, {4, 1}) != packed);
  CHECK(of_tensor(DType::f32, {4}, {1}) != packed);
  CHECK(of_tensor(DType::f32, {3, 4}, {4, 2}) == of_tensor(DType::f32, {3, 4}, {1, 3}));
  CHECK(packed->digest != score->digest);
}

TEST_CASE("threads that have one text have one function") {
  constexpr int kThreads = 4, kTexts = 200;
  std::vector<std::vector<const generator::FunctionText*>> found(kThreads);
  std::vector<std::thread> threads;
  for (auto& of_thread : found)
    threads.emplace_back([&of_thread] {
      for (int i = 0; i < kTexts; ++i) of_thread.push_back(Score("score + 1000 * " + std::to_string(i)).source());
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& of_thread : found) CHECK(of_thread == found.front());
}

TEST_CASE("another value is set under its name, and may change the type") {
  Score score("score + a * b", {{"a", 1.0}, {"b", 2}});
  const Score before = score;
  score.set({"b", 5});
  CHECK(score.source() == before.source());
  CHECK(std::get<std::int32_t>(score.captures()[1].value) == 5);
  CHECK(std::get<std::int32_t>(before.captures()[1].value) == 2);
  score.set({"a", Tensor(numbers, DType::f32, {3})});
  CHECK(score.source() != before.source());
  CHECK(score.text() == before.text());
  CHECK(std::get<Tensor>(score.captures()[0].value).shape == Dims{3});
  CHECK(refusal_of([&] { score.set({"c", 1}); }) == "score: capture c: must be one of the text's, was none of them");
  CHECK(refusal_of([&] {
          score.set({"a", Tensor(numbers, DType::f32, {1, 1, 1, 1, 1})});
        }) == "score: capture a: rank must be at most 4, was 5");
  CHECK(std::get<Tensor>(score.captures()[0].value).shape == Dims{3});  // as it was
}

TEST_CASE("errors in texts are found in a compiler's log, each once, with their places") {
  // As NVRTC 13.0 gives them.
  const std::string log =
      R"log(mask(1): error: a value of type "const char *" cannot be used to initialize an entity of type "float"
  float p = "x";
            ^

generated(3): error: A function without execution space annotations
  struct T { float operator()(int,int) const; };
                   ^

score(1): error: function "T::operator()" cannot be called with the given argument list
            argument types are: (int)
            object type is: T
  score + slope(1) + 1.5q
          ^
generated(3): note #3322-D: number of parameters of function "T::operator()" does not match the call
  struct T { float operator()(int,int) const; };
                   ^

score(2): error: identifier "bar" is undefined
     bar(key)
     ^
          detected during instantiation of "N k(N) [with N=float]" at line 2 of generated

score(2): error: identifier "bar" is undefined
     bar(key)
     ^
          detected during instantiation of "N k(N) [with N=double]" at line 2 of generated

score(7): error #20: identifier "baz" is undefined

score(3): warning #177-D: variable "a" was declared but never referenced
  int a = key;
      ^

mask(1): catastrophic error: too much

mask(x): error: no line
masked(1): error: of another file
4 errors detected in the compilation of "generated".
)log";
  const std::vector<TextError> errors = runtime::errors_of_texts(log);
  REQUIRE(errors.size() == 5);
  CHECK(to_string(errors[0]) ==
        "mask: line 1, column 11: a value of type \"const char *\" cannot be used to initialize an entity of type "
        "\"float\"");
  CHECK(errors[0].excerpt == "  float p = \"x\";\n            ^");
  CHECK(to_string(errors[1]) ==
        "score: line 1, column 9: function \"T::operator()\" cannot be called with the given argument list");
  CHECK(errors[1].excerpt == "  score + slope(1) + 1.5q\n          ^");
  CHECK(to_string(errors[2]) == "score: line 2, column 4: identifier \"bar\" is undefined");
  CHECK(to_string(errors[3]) == "score: line 7: identifier \"baz\" is undefined");
  CHECK(errors[3].excerpt == "");
  CHECK(to_string(errors[4]) == "mask: line 1: too much");
  CHECK(runtime::to_log({errors[2], errors[3]}) ==
        "score: line 2, column 4: identifier \"bar\" is undefined\n     bar(key)\n     ^\n"
        "score: line 7: identifier \"baz\" is undefined\n");
}

TEST_CASE("what is wrong with a text as a whole has no line, and what completes a message is told with it") {
  const std::vector<TextError> errors = runtime::errors_of_texts(
      R"log(value of score(1): error: no suitable conversion function from "const text::Tensor" to "float" exists
  return (
         ^

end of mask(1): error: missing return statement at end of non-void function "text::MaskText::operator()"
  }
  ^

score(1): error: more than one instance of overloaded function "f" matches the argument list:
            function "f(int)" (declared at line 7)
            function "f(long)" (declared at line 8)
            argument types are: (float)
  f(score)
  ^

score(2): error: identifier "foo" is undefined
  	foo
  	^

)log");
  REQUIRE(errors.size() == 4);
  CHECK(to_string(errors[0]) ==
        "score: no suitable conversion function from \"const text::Tensor\" to \"float\" exists");
  CHECK(errors[0].excerpt == "");
  CHECK(to_string(errors[1]) ==
        "mask: at its end: missing return statement at end of non-void function \"text::MaskText::operator()\"");
  CHECK(to_string(errors[2]) ==
        "score: line 1, column 1: more than one instance of overloaded function \"f\" matches the argument list: "
        "argument types are: (float)");
}

TEST_CASE("a log without errors of texts says nothing of them") {
  CHECK(runtime::errors_of_texts("").empty());
  CHECK(runtime::errors_of_texts("\n\n").empty());
  CHECK(runtime::errors_of_texts("templates/types.cuh(3): error: identifier \"score\" is undefined\n").empty());
  CHECK(
      runtime::errors_of_texts("score(1): warning #9-D: nested comment is not allowed\n  /* /* */\n     ^\n").empty());
  CHECK(runtime::errors_of_texts("score(").empty());
  CHECK(runtime::errors_of_texts("score(1)").empty());
  CHECK(runtime::to_log({}) == "");
}
