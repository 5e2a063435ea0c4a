// SPDX-License-Identifier: Apache-2.0
// How PTX is read: line info, scopes, variables, and what is refused.
#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "flashjit/emulator.h"

namespace {

using namespace flashjit::emulator;

const std::string kHead = ".version 8.0\n.target sm_90a\n.address_size 64\n";

std::string kernel(const std::string& body, const std::string& before = "") {
  return kHead + before +
         ".visible .entry k(.param .u64 out)\n{\n.reg .pred %p<4>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<4>;\n" +
         "ld.param.u64 %rd0, [out];\n" + body + "\nret;\n}\n";
}

// What the one thread of the kernel has stored to out.
std::uint32_t result(const std::string& ptx) {
  std::uint32_t word = 0xdead;
  Memory memory;
  memory.add("out", &word, sizeof(word));
  Launch launch;
  launch.set_parameters(&word);
  const Report report = Program(ptx).run("k", launch, memory);
  CHECK_MESSAGE(report.clean(), to_string(report));
  return word;
}

std::string refusal(const std::string& ptx) {
  try {
    Program{ptx};
  } catch (const ParseError& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("labels and registers of inline assembly belong to their braces") {
  const std::string twice = R"({
.reg .pred more;
.reg .b32 %r1;
mov.u32 %r1, 5;
again:
sub.u32 %r1, %r1, 1;
setp.ne.u32 more, %r1, 0;
add.u32 %r0, %r0, 1;
@more bra again;
@!more bra done;
trap;
done:
}
)";
  CHECK(result(kernel("mov.u32 %r0, 0;\n" + twice + twice + "st.global.u32 [%rd0], %r0;")) == 10);
}

TEST_CASE("variables of a module have their initial values, and shared ones their places") {
  const std::string globals =
      ".global .align 4 .u32 one = 1;\n.const .align 2 .u16 table[3] = {10, 20, 0x1e};\n"
      ".extern .shared .align 128 .b8 dynamic[];\n";
  const std::string body = R"(.shared .align 8 .b8 fixed[24];
mov.u64 %rd1, table;
ld.const.u16 %r1, [table+4];
ld.global.u32 %r0, [one];
add.u32 %r0, %r0, %r1;
mov.u32 %r2, dynamic;
mov.u32 %r3, fixed;
sub.u32 %r2, %r2, %r3;
mad.lo.u32 %r0, %r2, 1000, %r0;
st.global.u32 [%rd0], %r0;)";
  CHECK(result(kernel(body, globals)) == 128 * 1000 + 31);
}

TEST_CASE("a place names file, line and function, and what it is inlined at") {
  // demangled: float Softmax<1, true>::raise(float), void run<Config>(int)
  const std::string strings =
      ".section\t.debug_str\n{\n$L__info_string0:\n.b8 "
      "95,90,78,55,83,111,102,116,109,97,120,73,76,105,49,69,76,98,49,69,69,53,114,97,105,115,101,69,102,0\n$L__info_"
      "string1:\n.b8 95,90,51,114,117,110,73,54,67,111,110,102,105,103,69,118,105,0\n}\n";
  const std::string ptx =
      kernel(R"(.loc 1 10 3
mov.u32 %r0, 0;
.loc 2 20 5, function_name $L__info_string1, inlined_at 1 10 3
mov.u32 %r0, 0;
.loc 3 30 7, function_name $L__info_string0, inlined_at 2 20 5
trap;)") +
      ".file 1 \"/somewhere/a/kernel.cu\"\n.file 2 \"/somewhere/a/b/run.cuh\"\n.file 3 \"/somewhere/a/softmax.cuh\"\n" +
      strings;
  std::uint32_t word = 0;
  Memory memory;
  memory.add("out", &word, sizeof(word));
  Launch launch;
  launch.set_parameters(&word);
  const Report report = Program(ptx).run("k", launch, memory);
  REQUIRE(report.findings.size() == 1);
  const Place& place = report.findings[0].place;
  CHECK(place.file == "softmax.cuh");
  CHECK(place.line == 30);
  CHECK(place.function == "Softmax::raise");
  CHECK(place.inlined_at == std::vector<std::string>{"b/run.cuh:20 in run", "kernel.cu:10"});
  const std::string text = to_string(report.findings[0]);
  CHECK_MESSAGE(text.find("at softmax.cuh:30 in Softmax::raise, from b/run.cuh:20 in run, from kernel.cu:10") !=
                    std::string::npos,
                text);
}

TEST_CASE("what the emulator does not know is refused with its line, never guessed") {
  CHECK(refusal(kernel("frobnicate.u32 %r0, %r1;")) == "PTX line 10: unknown opcode in 'frobnicate.u32'");
  CHECK(refusal(kernel("add.sat.u32 %r0, %r1, %r2;")).find("PTX line 10") == 0);
  CHECK(refusal(kernel("mov.u32 %r0, %r99;")) == "PTX line 10: register '%r99' is not known");
  CHECK(refusal(kernel("bra nowhere;")).find("'nowhere' is neither a register nor a label") != std::string::npos);
  CHECK(refusal(kernel(".local .align 8 .b8 depot[16];")).find("'.local' in a kernel is not supported") !=
        std::string::npos);
  CHECK(refusal(kHead + ".func helper() { ret; }").find("'.func' at the top of a module is not supported") !=
        std::string::npos);
  CHECK(refusal(kernel("{ mov.u32 %r0, 0;")).find("has no end") != std::string::npos);
}

TEST_CASE("text that asks for more than a kernel can have is refused with its line") {
  const auto repeated = [](const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  CHECK(refusal(kernel(repeated("{", 30'000))) == "PTX line 10: more than 256 braces are open");
  CHECK(refusal(kernel("mov.b64 %rd1, " + repeated("{", 30'000))) == "PTX line 10: more than 256 braces are open");
  CHECK(refusal(kernel("mov.b64 %rd1, " + repeated("[%rd0, ", 30'000))) ==
        "PTX line 10: more than 256 braces are open");
  CHECK(refusal(kernel(repeated("{", 200) + repeated("}", 200))) == "none");

  CHECK(refusal(kernel(".reg .b32 %many<4000000000>;")) ==
        "PTX line 10: the number of registers must be at most 262144, was 4000000000");
  CHECK(refusal(kernel(".reg .b64 %many<262144>;")) ==
        "PTX line 10: a kernel must have at most 262144 registers of 32 bits");
  CHECK(refusal(kernel(repeated(".reg .pred %many<200000>;\n{", 2))) ==
        "PTX line 11: a kernel must have at most 262144 registers of 32 bits");
  CHECK(refusal(kernel("mov.u32 %r0, %r4294967296;")) == "PTX line 10: register '%r4294967296' is not known");
  CHECK(refusal(kernel("mov.u32 %r0, %r4294967295;")) == "PTX line 10: register '%r4294967295' is not known");

  const std::string no_memory = "PTX line 4: there is memory for ";
  CHECK(refusal(kernel("", ".global .b8 a[268435457];\n")).find("PTX line 4: an array's size must be at most") == 0);
  CHECK(refusal(kernel("", ".global .b8 a[65536][65536][65536][65536];\n")).find(no_memory) == 0);
  CHECK(refusal(kernel("", ".global .b64 a[268435456];\n")).find(no_memory) == 0);
  CHECK(refusal(kernel("", ".shared .b8 a[1048577];\n")).find(no_memory) == 0);
  CHECK(refusal(kernel(".shared .b8 a[1048576];\n.shared .b8 b[1];")).find("PTX line 11: there is memory for") == 0);
  CHECK(refusal(kHead + ".entry k(.param .b8 a[65537]) { }").find(no_memory) == 0);
  CHECK(refusal(kernel("", ".global .align 0 .b8 a;\n")) == "PTX line 4: an alignment must be a power of two, was 0");
  CHECK(refusal(kernel("", ".global .align 24 .b8 a;\n")) == "PTX line 4: an alignment must be a power of two, was 24");
  CHECK(
      refusal(kernel("", ".global .align 18446744073709551615 .b8 a;\n")).find("PTX line 4: an alignment must be at") ==
      0);
  CHECK(refusal(kHead + ".file 18446744073709551615 \"a\"\n").find("PTX line 4: .file's number must be at most") == 0);
  CHECK(refusal(kHead + ".entry k() .maxntid 4294967297 { }").find("PTX line 4: a limit of a kernel must be at") == 0);
  CHECK(refusal(kernel(".loc 1 4294967296 1")).find("PTX line 10: a line or file must be at most") == 0);
}

TEST_CASE("a name has one meaning in a scope") {
  CHECK(refusal(kernel("again:\nagain:")) == "PTX line 12: label 'again' is there twice");
  CHECK(refusal(kernel(".reg .b32 a, a;")) == "PTX line 10: register 'a' is declared twice");
  CHECK(refusal(kernel("{ .reg .b32 a; again: }\n{ .reg .b32 a; again: }")) == "none");
}

TEST_CASE("a launch that the kernel cannot have is refused") {
  const Program program(kernel("st.global.u32 [%rd0], 1;"));
  CHECK(program.entries() == std::vector<std::string>{"k"});
  Launch launch;
  CHECK_THROWS_WITH(program.run("k", launch, {}), "emulator: parameters: must have the 8 bytes that k declares, had 0");
  launch.set_parameters(std::uint64_t{0});
  CHECK_THROWS_WITH(program.run("j", launch, {}), "emulator: entry: must be one of k, was 'j'");
  launch.block = {2048};
  CHECK_THROWS_WITH(program.run("k", launch, {}), "emulator: block: must have 1 to 1024 threads, had 2048");
}
