// SPDX-License-Identifier: Apache-2.0
// The engine: makes, keeps and launches kernels. The free functions in attention.h use one default engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit/append.h"
#include "flashjit/attention.h"
#include "flashjit/backward.h"
#include "flashjit/batch_plan.h"
#include "flashjit/merge.h"
#include "flashjit/problem.h"
#include "flashjit/quantize.h"
#include "flashjit/reference.h"
#include "flashjit/sum.h"
#include "flashjit/tensor.h"
#include "flashjit/tuning.h"

namespace flashjit {

namespace emulator {
struct Report;  // flashjit/emulator.h
}

enum class Policy {
  compile,     // use the cache; compile on a miss and fill it
  cache_only,  // use the cache; a miss is Error(cache_miss): for serving
  off,         // neither read nor write the disk; compile into memory
};
const char* to_string(Policy policy) noexcept;
Policy parse_policy(std::string_view text);  // "compile", "cache_only", "off"; throws Error(invalid_argument)
// Bytes: "1000000", or "512M" with K, M, G or T (powers of 1024); more than 0. Throws Error(invalid_argument).
std::uint64_t parse_size(std::string_view text);

enum class LogLevel { debug, info, warning };

// A kernel that is being made, told before and after.
struct Progress {
  std::string kernel;     // readable name of problem and variant
  int done = 0;           // kernels finished so far of the running request
  int total = 0;          // kernels of the running request
  double elapsed_ms = 0;  // since the request began
};

// How the emulator runs a kernel.
struct EmulationOptions {
  // Which warp runs next and when copies complete, within what PTX allows. No right kernel's output depends on it.
  std::uint64_t seed = 0;
  // Thread blocks that the emulated device runs at once. So few that a persistent kernel's blocks have several tiles.
  int resident_blocks = 2;
  // Of warps, of one launch; a kernel that reaches it is reported as one that makes no progress. 0: no limit.
  std::uint64_t most_instructions = 0;
};

struct EngineOptions {
  Policy policy = Policy::compile;
  // The user's cache: where kernels are kept, created with mode 0700 when first written. A directory that belongs to
  // another user or that others may write to is refused: then kernels are kept in memory only, and SystemInfo and the
  // log say why. Empty: in memory only.
  std::string cache_directory;
  // The user's cache is kept below this size: what was not used for longest goes first.
  std::uint64_t cache_max_bytes = std::uint64_t{1} << 30;
  // Further caches that are only read, after the user's and in this order: directories of the same kind, ...
  std::vector<std::string> system_cache_directories;
  // ... bundle files (`flashjit cache export`, `flashjit compile --bundle`), ...
  std::vector<std::string> bundles;
  // ... and bundles that are linked into the application; their bytes must outlive the engine.
  std::vector<std::string_view> embedded_bundles;
  // How long a kernel that another process is compiling right now is waited for, before it is compiled here as well.
  std::chrono::milliseconds compile_wait{30000};
  // Whether calls use what tuning found on devices like theirs, and whether they tune themselves (docs/tuning.md).
  TuningPolicy tuning = TuningPolicy::recorded;
  // An exact libnvrtc to load, and no other. Empty: the search described in docs/architecture.md. In either case one
  // that anybody may write to, or that is damaged, is not opened.
  std::string nvrtc_path;
  // Directories that are searched for libnvrtc before the usual ones.
  std::vector<std::string> nvrtc_directories;
  // Read the device code from here instead of the copy inside the library: for developing templates.
  std::string template_directory;
  // An architecture, "sm_90a": kernels for it run in the emulator (flashjit/emulator.h), on the CPU and without a
  // driver. Calls then take tensors in host memory and the null stream, and have finished when they return; an output
  // that attention() returns is in kHostMemory. For small shapes. Empty: kernels run on the GPU.
  std::string emulate;
  EmulationOptions emulation;  // of attention()
  // For debugging: each call with a ragged batch, each plan and each append reads its offsets, lengths, indices, slots
  // and page table back first, which waits for its stream, and throws Error(invalid_argument) for what no call may say,
  // with the sequence and the entry of the table: numbers of no page, offsets that decrease, lengths beyond rows, table
  // or maximum. Likewise each quantize the scales that it is given. Not while a graph is captured.
  bool check_pages = false;
  // These may be called from any thread. What they throw is dropped: a line that cannot be written is no error of a
  // call.
  std::function<void(LogLevel, const std::string&)> log;
  std::function<void(const Progress&)> progress;

  // The only place where the library reads the environment, of which it sees nothing in a program that has more rights
  // than who started it (set-uid, set-gid, capabilities; see secure_getenv): FLASHJIT_POLICY, FLASHJIT_CACHE_DIR (else
  // $XDG_CACHE_HOME/flashjit, else $HOME/.cache/flashjit, else no directory), FLASHJIT_CACHE_SIZE (bytes, or with K, M,
  // G, T: 512M), FLASHJIT_SYSTEM_CACHE (directories, separated by ":"), FLASHJIT_BUNDLES (files, separated by ":"),
  // FLASHJIT_TUNING (off, recorded, on_first_use, frozen), FLASHJIT_NVRTC, FLASHJIT_TEMPLATE_DIR, FLASHJIT_CHECK_PAGES
  // (1 or 0), FLASHJIT_DEVICE (gpu; emulate, which is emulate:sm_90a; emulate:ARCHITECTURE), FLASHJIT_LOG (debug, info,
  // warning: to stderr); and for nvrtc_directories LD_LIBRARY_PATH, CUDA_HOME, CUDA_PATH, VIRTUAL_ENV and CONDA_PREFIX.
  // Throws Error(invalid_argument) which names the variable. A home that is not there is not made: then it is as if
  // unset.
  static EngineOptions from_environment();
};

// Facts about one compiled kernel, of whichever pass. Of one that an engine prepared to emulate: registers, spills and
// stack are 0, and cubin_bytes is the size of the PTX.
struct KernelFacts {
  std::string name;  // problem, variant and architecture, readable
  std::string architecture;
  enum class Origin { compiled, disk, bundle, memory } origin = Origin::compiled;
  bool tuned = false;  // a tuning record chose the variant, of Engine::prepare for a problem
  // What NVRTC took when it was compiled, also when it comes from the cache now; 0 when it comes from a bundle.
  double compile_ms = 0;
  int threads = 0;      // of a block
  int registers = 0;    // per thread at launch; hopper kernels then move them between warpgroups
  int spill_bytes = 0;  // stores and loads; 0 for nearly every variant that Engine::variants lists
  int stack_bytes = 0;
  int shared_memory_bytes = 0;
  std::size_t cubin_bytes = 0;
  std::string cache_file;     // or <bundle>:<member>; empty when it is in memory only
  std::string cache_problem;  // why it could not be stored in the user's directory; empty when it was, or was not to be
};
struct KernelInfo : KernelFacts {
  Problem problem;
  Variant variant;
};
struct BackwardKernelInfo : KernelFacts {
  BackwardProblem problem;
  BackwardVariant variant;
};
const char* to_string(KernelInfo::Origin origin) noexcept;

struct DeviceInfo {
  int ordinal = 0;  // kHostMemory: an emulated device
  std::string name;
  std::string architecture;  // empty when no kernel here runs on it
  int major = 0, minor = 0;  // compute capability
  int sm_count = 0;          // an emulated device counts work as if it had as many as an H200
  std::int64_t memory_bytes = 0;
  std::int64_t l2_bytes = 0;
  int sm_clock_mhz = 0, memory_clock_mhz = 0;  // the highest
  int memory_bus_bits = 0;
};

// Where kernels are looked up, after the engine's own memory.
enum class CacheLayer { user, system, bundle, embedded };
const char* to_string(CacheLayer layer) noexcept;

struct CacheLayerInfo {
  CacheLayer layer = CacheLayer::user;
  std::string location;  // of a linked-in bundle: "embedded", and its number from the second on
  std::string problem;   // why it is not used, in one line; empty when it is in order or simply not there yet
  std::uint64_t entries = 0;
  std::uint64_t bytes = 0;
};

// What the engine found on this machine. Nothing in it needs a GPU, a driver or NVRTC to be present.
struct SystemInfo {
  std::string version;
  std::string driver_version;  // "13.0"; empty when there is no driver
  std::string driver_problem;  // why there is none
  std::string nvrtc_version;   // "13.0"; empty when there is no NVRTC
  std::string nvrtc_path;
  std::string nvrtc_problem;               // why there is none, with the places searched
  std::vector<std::string> nvrtc_refused;  // libraries that were found and passed over, each with why
  std::vector<CacheLayerInfo> cache;       // in the order in which they are asked; none under Policy::off
  std::uint64_t cache_max_bytes = 0;
  Policy policy = Policy::compile;
  TuningPolicy tuning = TuningPolicy::recorded;
  std::vector<DeviceInfo> devices;  // of an engine that emulates: that one device
};

// What an engine's cache and its tuning did so far.
struct Counters {
  // Kernels served from this engine's memory, and from each layer, when one was asked for.
  std::uint64_t memory_hits = 0, user_hits = 0, system_hits = 0, bundle_hits = 0, embedded_hits = 0;
  std::uint64_t misses = 0;  // asked for and nowhere in the cache
  std::uint64_t compiles = 0;
  std::uint64_t quarantined = 0;     // entries that were damaged, or that the driver refused, and were a miss
  std::uint64_t write_failures = 0;  // entries that could not be stored; the kernel was used from memory
  std::uint64_t waits = 0;           // kernels that another process was compiling, and that were waited for
  std::uint64_t wait_timeouts = 0;   // of these, those that it did not finish in time
  std::uint64_t evicted = 0;         // entries removed to keep the user's cache below its size
  std::uint64_t bytes_read = 0, bytes_written = 0;  // of entries
  std::uint64_t tunings = 0;                        // times that candidates were measured for a problem and bucket
  std::uint64_t timed_launches = 0;                 // of these tunings
  std::uint64_t records_used = 0;                   // choices that came from a tuning record
};

struct MeasureOptions {
  int warmup = 3;
  int repeats = 30;
  bool flush_l2 = true;  // overwrite a buffer of twice the L2 before each launch
};
struct Timing {
  double median_us = 0, min_us = 0, max_us = 0;  // of the kernel, by events
  int repeats = 0;
};
struct HostCost {
  double call_us = 0;         // host time of one attention() into caller's memory, median, with k and v in each other's
                              // place where they are alike, so that it has other ones than a call before it had
  double bare_launch_us = 0;  // host time of cuLaunchKernelEx with the same kernel and parameters, in the same run
};

// Thread-safe: every member may be called from any thread, with any CUDA context current or none. Kernels are made
// once per engine and device. Capturable: a call whose problem was prepared may be captured in a CUDA graph.
// Destroying an engine does not wait for work in flight; synchronise first. Graphs that captured its calls must not run
// after it.
class Engine {
 public:
  explicit Engine(EngineOptions options = EngineOptions::from_environment());
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Whether kernels run in the emulator, on tensors in host memory (EngineOptions::emulate).
  bool emulates() const noexcept;

  // See attention.h.
  DeviceTensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts = {});
  void attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                 const AttentionOptions& opts = {});

  // See backward.h.
  Gradients attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                               const Tensor& lse, const AttentionOptions& opts = {},
                               const BackwardOptions& backward = {});
  void attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                          const Tensor& lse, const GradientTensors& into, const AttentionOptions& opts = {},
                          const BackwardOptions& backward = {});

  // Makes the list of tiles of a ragged batch on opts.stream, and has the memory for the partial results of calls whose
  // keys are split, of those that are not ragged too: for AttentionOptions::plan of any number of calls with
  // this problem and these sizes: all layers of a serving step. Of q, k and v only sizes, strides and the device count.
  // It makes the kernels that these calls need, so that they may be captured in a graph. Of its own memory, or of the
  // caller's: i32, packed, on the device of q, 16-byte aligned, with at least so many words as plan_dims says, which
  // depend on sizes, window and chunk, not on lengths. Throws Error.
  BatchPlan plan(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts = {});
  BatchPlan plan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& memory, const AttentionOptions& opts);
  Dims plan_dims(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts = {});
  // Makes it anew in place, of what offsets, lengths, padding and indices say when the stream comes to it: one kernel,
  // which may be captured. For the sizes that the plan was made for. Throws Error.
  void update(BatchPlan& plan, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts = {});

  // See merge.h.
  void merge(const std::vector<Partial>& parts, const Tensor& out, const MergeOptions& opts = {});
  DeviceTensor merge(const std::vector<Partial>& parts, const MergeOptions& opts = {});
  // See sum.h.
  void sum(const std::vector<Tensor>& parts, const Tensor& out, Stream stream = nullptr);

  // See append.h.
  void append(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache,
              const AppendOptions& opts);

  // See quantize.h.
  void quantize(const Tensor& x, const Tensor& out, const Tensor& scale, const QuantizeOptions& opts = {});
  Quantized quantize(const Tensor& x, const QuantizeOptions& opts = {}, DType dtype = DType::e4m3);

  // What the predicates of the options (boolean_mask, documents, tree, mask) leave of granules of 64 queries and 16
  // keys, for AttentionOptions::block_mask: on opts.stream, for calls with the same predicates and offsets and the
  // lengths of the shape, as often as they are made. With batch or num_heads_q 1 it is for all that are. The kernel
  // that makes it depends on the functions only. into: i32 of block_mask_dims(shape), packed; its memory may be used
  // again for other lengths. Throws Error.
  void block_mask(const AttentionOptions& opts, const CallShape& shape, const Tensor& into);
  // The same in memory of its own, on the device of opts.stream, or of the current context.
  DeviceTensor block_mask(const AttentionOptions& opts, const CallShape& shape);

  // reference::attention and attention_in_low_precision, with score and mask of the options, too: each is applied by a
  // kernel that has nothing but its text, one thread a score, on this engine's device (that of the current context, or
  // 0), in f64 and f32. All tensors, captured ones too, in host memory. Throws Error.
  reference::Result reference(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& opts = {});
  reference::Result reference_in_low_precision(const Tensor& q, const Tensor& k, const Tensor& v,
                                               const AttentionOptions& opts = {});
  // Likewise reference::attention_backward and attention_backward_in_low_precision. score is differentiated by dual
  // numbers in f64 and f32. Nothing is told of what it captures.
  reference::Gradients reference_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                          const AttentionOptions& opts = {}, const std::optional<Tensor>& dlse = {});
  reference::Gradients reference_backward_in_low_precision(const Tensor& dout, const Tensor& q, const Tensor& k,
                                                           const Tensor& v, const AttentionOptions& opts = {},
                                                           const std::optional<Tensor>& dlse = {});

  // Makes and loads what a call for this problem needs on this device: the variant of every shape bucket, or the given
  // one; also what makes a block mask or the list of tiles of ragged batches, and what combines split keys, which are
  // not among the kernels that are told. After it such calls compile, read, load and measure nothing. device -1 is the
  // current context's, or 0; or the emulated one.
  std::vector<KernelInfo> prepare(const Problem& problem, int device = -1, const std::optional<Variant>& variant = {});
  // Makes and loads what this one call needs, and says which kernel that is; its origin is what it was when this engine
  // got it. Reads and writes no element. Measures only where the call would: under TuningPolicy::on_first_use. Throws
  // what the call would throw. A call without queries needs none: then nothing is made, and the name is empty.
  KernelInfo prepare(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                     const AttentionOptions& opts = {});
  // Likewise for calls for these gradients, of whatever sizes: the kernels of the variants that they may take, or of
  // the given one, which are told, and all that stands beside them. Calls without dq are not deterministic ones, and
  // those that leave out a gradient of an option are another problem's.
  std::vector<BackwardKernelInfo> prepare_backward(const BackwardProblem& problem, int device = -1,
                                                   const std::optional<BackwardVariant>& variant = {});
  // Likewise the kernels of this one call of attention_backward(), merge() or sum(). Throw what the call would throw.
  // That for gradients allocates, and frees, the memory that the call would work in.
  void prepare_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                        const Tensor& lse, const GradientTensors& into, const AttentionOptions& opts = {},
                        const BackwardOptions& backward = {});
  void prepare_merge(const std::vector<Partial>& parts, const Tensor& out, const MergeOptions& opts = {});
  void prepare_sum(const std::vector<Tensor>& parts, const Tensor& out, Stream stream = nullptr);

  // --- Tuning (docs/tuning.md) --------------------------------------------------------------------------------------

  // Chooses the variant for the problem and the bucket of this shape by measurement, and keeps the record. It is made
  // for the problem's class (tuning_class): what stands for users' texts is timed, and never a text itself. When there
  // is a record for this device already, that is the answer, unless asked to measure again. Calls of this engine that
  // were made or prepared before keep their variant, unless asked to adopt the new one. While another thread or process
  // tunes the same, it is waited for. Throws Error(unsupported) when the policy is frozen and on an engine that
  // emulates.
  TuningRecord tune(const Problem& problem, const CallShape& shape, const TuneOptions& options = {}, int device = -1);
  // The records that this engine would use on the device: of all layers of its cache and of the library, without what
  // another one hides.
  std::vector<TuningRecord> tuning_records(int device = -1) const;
  // The same for gradients, whose candidates must make those of the default variant, within what rounding explains.
  BackwardTuningRecord tune_backward(const BackwardProblem& problem, const CallShape& shape,
                                     const BackwardTuneOptions& options = {}, int device = -1);
  std::vector<BackwardTuningRecord> backward_tuning_records(int device = -1) const;
  // From now on calls on devices like this one take what these records chose, and the default rules' where they say
  // nothing: what the cache has, and what others keep meanwhile, does not count, and nothing is measured. So calls of
  // several processes take the same variants, in every run. Records of other devices are passed over, and with a
  // warning those that are not legal here. Calls of this engine that were made or prepared before keep their variant.
  // Throws Error(unsupported) on an engine that emulates, and for records where the tuning policy is off.
  void use_records(const std::vector<TuningRecord>& records, const std::vector<BackwardTuningRecord>& backward_records,
                   int device = -1);

  // --- Without a GPU or a driver ------------------------------------------------------------------------------------

  // Variants of all families that are legal for the problem on the architecture and worth trying, the defaults first;
  // nearly all of them compile without spills. The write-up's steps v1 to v5 are among them wherever they fit.
  std::vector<Variant> variants(const Problem& problem, std::string_view architecture) const;
  // Without a bucket that of the largest shapes.
  Variant default_variant(const Problem& problem, std::string_view architecture, const ShapeBucket& bucket = {}) const;
  // For calls with tensors that TMA cannot describe: without keys, or with strides of 0.
  Variant default_without_tma(const Problem& problem, std::string_view architecture) const;
  // The defaults of all buckets, those of the largest shapes first, and that without TMA; each once.
  std::vector<Variant> default_variants(const Problem& problem, std::string_view architecture) const;
  // What tuning records chose for the problem on whatever GPU of this architecture, each once: what calls may take
  // there besides the defaults. None when EngineOptions::tuning is off.
  std::vector<Variant> recorded_variants(const Problem& problem, std::string_view architecture) const;
  // Every combination that is considered, with why it is not in variants(): those that are come first.
  std::vector<VariantExplanation> explain_variants(const Problem& problem, std::string_view architecture) const;
  // The whole source of the kernel, one self-contained file that NVRTC and nvcc accept. Equal inputs give equal bytes.
  std::string render(const Problem& problem, const Variant& variant, std::string_view architecture) const;
  // Takes the kernel from the cache, or compiles it with NVRTC and fills the cache; also what its calls run
  // beside it: what makes a block mask or the list of tiles of ragged batches, and what combines split keys.
  // Throws Error(no_compiler, compile_failed, cache_miss, invalid_argument).
  KernelInfo compile(const Problem& problem, const Variant& variant, std::string_view architecture);
  // Likewise the kernel of append (append.h), and that of merge (merge.h) for parts and a result of f16, bf16 or f32.
  // Of append throws Error(unsupported), too, for caches of e4m3 or e5m2 on architectures that do not convert to these.
  KernelFacts compile_append(const AppendProblem& problem, std::string_view architecture);
  KernelFacts compile_merge(DType part, DType out, std::string_view architecture);
  KernelFacts compile_sum(DType part, DType out, std::string_view architecture);  // likewise: sum.h

  // The same of calls for gradients. What they take without a record: of the Hopper family, where that has kernels, for
  // calls of 64 queries or more with tensors that TMA can describe, and of mma.sync for all others; how many queries
  // there are may also decide which one of the Hopper family.
  std::vector<BackwardVariant> default_backward_variants(const BackwardProblem& problem,
                                                         std::string_view architecture) const;
  std::vector<BackwardVariant> backward_variants(const BackwardProblem& problem, std::string_view architecture) const;
  std::vector<BackwardVariant> recorded_backward_variants(const BackwardProblem& problem,
                                                          std::string_view architecture) const;
  std::vector<BackwardVariantExplanation> explain_backward_variants(const BackwardProblem& problem,
                                                                    std::string_view architecture) const;
  std::string render_backward(const BackwardProblem& problem, const BackwardVariant& variant,
                              std::string_view architecture) const;
  // With all that stands beside the kernel: what clears counters, what goes through the rows before it and behind it,
  // and what makes the gradients of options.
  BackwardKernelInfo compile_backward(const BackwardProblem& problem, const BackwardVariant& variant,
                                      std::string_view architecture);

  // A bundle (docs/cache.md) of every kernel that this engine holds: that it compiled, prepared or called. Equal
  // kernels give equal bytes, whatever the order and the machine.
  std::string bundle() const;

  SystemInfo system() const;
  Counters counters() const;

  // --- In the emulator ----------------------------------------------------------------------------------------------

  // attention() on an engine that emulates, with all that the emulator found and counted. attention() itself throws
  // Error(kernel_fault) when there are findings. Throws Error(unsupported) on an engine that does not emulate.
  emulator::Report emulate(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                           const AttentionOptions& opts = {}, const EmulationOptions& options = {});
  // The same of attention_backward(), of whose launches it tells the first that has findings, or else the one that
  // computes gradients.
  emulator::Report emulate_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Tensor& out, const Tensor& lse, const GradientTensors& into,
                                    const AttentionOptions& opts = {}, const BackwardOptions& backward = {},
                                    const EmulationOptions& options = {});

  // --- Measuring on the GPU -----------------------------------------------------------------------------------------

  Timing measure(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                 const AttentionOptions& opts = {}, const MeasureOptions& options = {});
  // Of quantize(), with the launch that finds maxima where there is one.
  Timing measure(const Tensor& x, const Tensor& out, const Tensor& scale, const QuantizeOptions& opts,
                 const MeasureOptions& options = {});
  HostCost measure_host_cost(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                             const AttentionOptions& opts = {});
  // The rate of a loop of nothing but mma.sync on this device, in TFLOPS: the speed of light of the mma.sync family.
  double measure_mma_ceiling(DType dtype = DType::bf16, int device = -1);

 private:
  struct Impl;
  friend Engine& default_engine();  // whose counters are kept when the process ends
  std::unique_ptr<Impl> impl_;
};

// Built on first use from EngineOptions::from_environment(); lives until the process ends.
Engine& default_engine();

}  // namespace flashjit
