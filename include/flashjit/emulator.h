// SPDX-License-Identifier: Apache-2.0
// Runs PTX on the CPU, without a GPU and without CUDA, and finds what hardware forgives: races, reads of what was never
// written, broken barrier protocols. For kernels in tests, and for small problems on machines without a GPU.
// docs/emulator.md says what is modelled.
//
//   emulator::Program program(ptx);                       // what NVRTC emits, with --generate-line-info
//   emulator::Memory memory;
//   memory.add("x", x.data(), x.size() * sizeof(float));  // addresses on the "device" are those of the host
//   emulator::Launch launch;
//   launch.grid = {4}; launch.block = {128};
//   launch.set_parameters(x.data(), 17);                  // as the kernel declares them
//   const emulator::Report report = program.run("kernel", launch, memory);
//   for (const auto& finding : report.findings) std::cerr << to_string(finding) << '\n';
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace flashjit::emulator {

struct Extent {
  unsigned x = 1, y = 1, z = 1;

  constexpr std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

// --- Memory ----------------------------------------------------------------------------------------------------------

// The global memory that a launch may touch: buffers of the caller's, at their host addresses. An access that is not
// wholly inside one buffer is a finding and does not happen.
class Memory {
 public:
  // The bytes stay the caller's and must outlive the launches. The name is for messages.
  void add(std::string name, void* data, std::size_t bytes);
  void add_read_only(std::string name, const void* data, std::size_t bytes);

  struct Buffer {
    std::string name;
    std::uintptr_t begin = 0, end = 0;
    bool writable = true;
  };
  const std::vector<Buffer>& buffers() const noexcept { return buffers_; }

 private:
  std::vector<Buffer> buffers_;  // by begin
};

// --- Tensor maps -----------------------------------------------------------------------------------------------------

enum class TensorElement { u8, u16, u32, s32, u64, s64, f16, bf16, f32, f64 };
enum class TensorSwizzle { none, bytes_32, bytes_64, bytes_128 };
enum class TensorFill { zeros, nan };

// What cuTensorMapEncodeTiled is told (PTX ISA, "Tensors"), interleave none. The first dimension is contiguous.
struct TensorMapDescription {
  TensorElement element = TensorElement::bf16;
  int rank = 0;                                 // 1 to 5
  void* address = nullptr;                      // multiple of 16
  std::array<std::uint64_t, 5> sizes{};         // elements
  std::array<std::uint64_t, 4> byte_strides{};  // of dimensions 1 to rank-1, multiples of 16
  std::array<std::uint32_t, 5> box{};           // elements, at most 256 each
  std::array<std::uint32_t, 5> element_strides{1, 1, 1, 1, 1};
  TensorSwizzle swizzle = TensorSwizzle::none;
  TensorFill fill = TensorFill::zeros;
};
// 128 bytes that take the place of a CUtensorMap in a kernel's parameters; only the emulator can read them.
struct alignas(64) TensorMap {
  std::uint64_t words[16] = {};
};
// Throws std::invalid_argument that names the field, what it must be and what it was.
TensorMap encode_tensor_map(const TensorMapDescription& description);

// --- Launches --------------------------------------------------------------------------------------------------------

struct Launch {
  Extent grid, block;
  Extent cluster;  // the kernel's .reqnctapercluster wins where it has one
  std::size_t dynamic_shared_bytes = 0;
  std::vector<std::byte> parameters;  // the parameter space, laid out as the kernel declares it

  // Which warp runs next and when asynchronous operations complete, within what PTX allows. A right kernel gives the
  // same result for every seed.
  std::uint64_t seed = 0;
  int resident_clusters = 2;            // that run interleaved
  std::size_t most_findings = 16;       // after so many different ones the launch stops
  std::uint64_t most_instructions = 0;  // of warps; 0 is no limit. Reaching it is a finding

  // Lays out parameters one after the other, each at its own alignment.
  template <class... Parameters>
  void set_parameters(const Parameters&... values) {
    parameters.clear();
    (append(values), ...);
  }

 private:
  template <class Parameter>
  void append(const Parameter& value) {
    static_assert(std::is_trivially_copyable_v<Parameter>);
    const std::size_t at = (parameters.size() + alignof(Parameter) - 1) / alignof(Parameter) * alignof(Parameter);
    parameters.resize(at + sizeof(Parameter));
    std::memcpy(parameters.data() + at, &value, sizeof(Parameter));
  }
};

// --- Findings --------------------------------------------------------------------------------------------------------

enum class FindingKind {
  unwritten_register,   // read before any write
  unwritten_shared,     // bytes of shared memory, read before any write
  race,                 // two accesses of shared memory that nothing orders, one of them a write
  register_in_flight,   // accumulator or A registers of wgmma touched before the wait
  missing_wgmma_fence,  // registers of wgmma written since the last wgmma.fence
  missing_proxy_fence,  // written by ordinary stores, read or overwritten by the async proxy without a fence between
  mbarrier_not_initialised,  // or its initialisation is not visible to who uses it, or its memory was overwritten
  mbarrier_phase,            // more arrivals than expected, a wait with a stale parity, a phase that was missed
  mbarrier_transaction,      // byte counts that do not add up
  shared_out_of_bounds,      // an access, a descriptor or a box that leaves the block's shared memory
  global_out_of_bounds,
  misaligned,
  barrier_mismatch,       // a named barrier with different counts, or more arrivals than it has
  deadlock,               // everyone waits; the message says who waits for what
  unequal_participation,  // a .sync or .aligned operation that not all threads it names execute together
  left_in_flight,         // a block ended while a copy still used its shared memory
  bad_operand,            // a value that PTX forbids: a shift of a descriptor, a register count, a box
  no_progress,            // most_instructions was reached
};
const char* to_string(FindingKind kind) noexcept;  // "race", "missing_proxy_fence", ...

// Where an instruction comes from.
struct Place {
  int ptx_line = 0;  // 1 is the first
  std::string file;  // of the source; empty without line info
  int line = 0;
  std::string function;                 // empty where the PTX does not say
  std::vector<std::string> inlined_at;  // "file:line in function", innermost caller first: the outer ones tell the role
};

struct Finding {
  FindingKind kind = FindingKind::race;
  std::string message;  // one line: what happened, to what, and who the other side was
  Place place;          // of the instruction that found it
  Extent block{0, 0, 0};
  int warp = -1;
  std::uint64_t times = 1;  // at this instruction; the message is that of the first time
};
// "race: ... at hopper/store.cuh:88 (store), PTX line 1234, block 0, warp 5"
std::string to_string(const Finding& finding);

// --- Counters --------------------------------------------------------------------------------------------------------

struct InstructionCount {
  Place place;
  std::string opcode;                // as the PTX has it
  std::uint64_t warps = 0;           // executions by a warp
  std::uint64_t bank_conflicts = 0;  // wavefronts of shared memory beyond those that the bytes need
};

struct Counters {
  std::uint64_t warp_instructions = 0, thread_instructions = 0;
  std::map<std::string, std::uint64_t> by_class;  // executions by a warp: "integer", "float", "shared", "wgmma", ...
  std::map<int, std::uint64_t> by_warp;           // number of the warp in its block; all blocks together
  std::uint64_t bank_conflicts = 0;
  std::uint64_t tma_bytes_loaded = 0, tma_bytes_stored = 0;
  std::vector<InstructionCount> instructions;  // those that ran, in the PTX's order
};

struct Report {
  std::vector<Finding> findings;
  Counters counters;
  double seconds = 0;  // of this machine

  bool clean() const noexcept { return findings.empty(); }
};
// One line for each finding; "clean" when there are none.
std::string to_string(const Report& report);

// --- Programs --------------------------------------------------------------------------------------------------------

// A PTX module. Immutable: several threads may run launches of it at once, on memory that does not overlap.
class Program {
 public:
  // Throws ParseError for text that is not PTX and for an opcode that the emulator does not know.
  explicit Program(const std::string& ptx);
  ~Program();
  Program(Program&&) noexcept;
  Program& operator=(Program&&) noexcept;

  std::vector<std::string> entries() const;

  // Runs the whole grid, on the calling thread. Throws std::invalid_argument for a launch that the kernel cannot have:
  // an unknown entry, parameters of another size, a block that is larger than .maxntid.
  Report run(const std::string& entry, const Launch& launch, const Memory& memory) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// what() is one line with the PTX line, and with the place in the source where there is line info.
class ParseError : public std::runtime_error {
 public:
  ParseError(const std::string& message, Place place_) : std::runtime_error(message), place(std::move(place_)) {}
  Place place;
};

}  // namespace flashjit::emulator
