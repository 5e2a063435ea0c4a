/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of libflashjit, C99: for other languages and for programs without C++. C++ programs use
   <flashjit/flashjit.h>. Tensors are DLPack's DLTensor (https://dmlc.github.io/dlpack). Every function is thread-safe
   unless it says otherwise.
   Structs begin with their size, and later versions add fields at the end: start from the INIT macro of each. A program
   that was compiled with an older header gets the default, 0, for fields that it does not know. One that was compiled
   with a newer header than the library's may leave new fields at 0; setting one is FLASHJIT_UNSUPPORTED. */
#ifndef FLASHJIT_H
#define FLASHJIT_H

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What went wrong; flashjit_last_error() has the message. Values never change. */
typedef enum flashjit_status {
  FLASHJIT_OK = 0,
  FLASHJIT_INVALID_ARGUMENT = 1, /* an argument is wrong; the message names it, what it must be and what it was */
  FLASHJIT_UNSUPPORTED = 2,      /* this device, problem or state cannot do it */
  FLASHJIT_NO_DRIVER = 3,        /* libcuda could not be loaded */
  FLASHJIT_NO_DEVICE = 4,        /* there is a driver but no usable GPU */
  FLASHJIT_NO_COMPILER = 5,      /* a kernel has to be compiled and NVRTC was not found */
  FLASHJIT_COMPILE_FAILED = 6,
  FLASHJIT_CACHE_MISS = 7,     /* the policy forbids compiling and the cache lacks the kernel */
  FLASHJIT_DRIVER = 8,         /* a call of the CUDA driver failed */
  FLASHJIT_IO = 9,             /* a file could not be read or written */
  FLASHJIT_KERNEL_FAULT = 10,  /* the emulator found a kernel at fault */
  FLASHJIT_COMMUNICATION = 11, /* GPUs could not communicate: of functions of flashjit_distributed.h */
  FLASHJIT_FAILURE = 100       /* anything else, as when memory is exhausted */
} flashjit_status;
const char* flashjit_status_name(flashjit_status status); /* "ok", "invalid_argument", ...; "?" for no status */

/* Of this thread's last call that returned a status: why it failed, or "" when it succeeded. Valid until the next such
   call. */
const char* flashjit_last_error(void);

const char* flashjit_version(void); /* "major.minor.patch" */

/* --- Engines ----------------------------------------------------------------------------------------------------- */

/* Compiles kernels, keeps them and launches them. In place of an engine NULL names the default one, which reads its
   options from the environment when it is first used and lives as long as the process. */
typedef struct flashjit_engine flashjit_engine;

/* NULL leaves what the environment says (flashjit::EngineOptions::from_environment). Texts are copied. */
typedef struct flashjit_engine_options {
  size_t struct_size;
  const char* policy;          /* "compile", "cache_only", "off" */
  const char* cache_directory; /* "": in memory only */
  const char* bundles;         /* files, separated by ":"; "": none */
  const char* tuning;          /* "off", "recorded", "on_first_use", "frozen" */
  const char* emulate;         /* an architecture, "sm_90a": kernels run on the CPU, in host memory; "": on the GPU */
  const char* nvrtc_path;      /* "": it is looked for */
} flashjit_engine_options;
#define FLASHJIT_ENGINE_OPTIONS_INIT \
  { sizeof(flashjit_engine_options), NULL, NULL, NULL, NULL, NULL, NULL }

/* options may be NULL. On failure *engine is NULL. */
flashjit_status flashjit_engine_create(const flashjit_engine_options* options, flashjit_engine** engine);
/* NULL is allowed. No other thread may be using the engine. Does not wait for work in flight: synchronise first. */
void flashjit_engine_destroy(flashjit_engine* engine);

/* What happened since the engine was made. disk_hits are of directories and bundles together. */
typedef struct flashjit_counters {
  size_t struct_size;
  uint64_t memory_hits, disk_hits, misses, compiles, tunings, timed_launches, records_used;
} flashjit_counters;
#define FLASHJIT_COUNTERS_INIT \
  { sizeof(flashjit_counters), 0, 0, 0, 0, 0, 0, 0 }
flashjit_status flashjit_get_counters(flashjit_engine* engine, flashjit_counters* counters);

/* --- Attention --------------------------------------------------------------------------------------------------- */

/* Query i sees at most `left` keys before key i + seqlen_kv - seqlen_q, that key itself, and at most `right` keys
   after it; -1: all there are on that side. Beside causal = 1 there is nothing on the right. */
typedef struct flashjit_window {
  int64_t left, right;
} flashjit_window;

/* What a text takes by a name, beside its own arguments. An array of these is as it is here in every version. */
typedef struct flashjit_capture {
  const char* name;       /* an identifier that the text uses */
  const DLTensor* tensor; /* rank 0 to 4, kDLFloat 16 or 32, kDLBfloat 16, kDLInt 32 or 64, or kDLBool 8: the text calls
                             it like a function; NULL: the number */
  double number;          /* a float in the text */
  int32_t is_integer;     /* 1: the number is a whole one of 32 bits, an int in the text */
  int32_t reserved;       /* 0 */
} flashjit_capture;

/* A function as text: what becomes of a score, or which keys a query sees. flashjit/function.h says what a text may
   use. Text and tensors are read during the call, and by the kernel the tensors' elements. */
typedef struct flashjit_function {
  size_t struct_size;
  const char* text; /* so many bytes; a null character at the end is not one of them */
  size_t text_size;
  const flashjit_capture* captures;
  size_t capture_count;
} flashjit_function;
#define FLASHJIT_FUNCTION_INIT \
  { sizeof(flashjit_function), NULL, 0, NULL, 0 }

/* The list of tiles of a ragged batch, and memory for split keys, for many calls: see Plans. */
typedef struct flashjit_plan flashjit_plan;

typedef struct flashjit_attention_options {
  size_t struct_size;
  int32_t causal;            /* 0 or 1: query i sees the keys up to i + seqlen_kv - seqlen_q */
  int32_t has_softmax_scale; /* 0: 1 / sqrt(head_dim) */
  float softmax_scale;
  const DLTensor* lse;            /* f32 [batch, num_heads_q, seqlen_q]; NULL: not written */
  void* stream;                   /* CUstream or cudaStream_t; NULL: the default stream */
  const char* variant;            /* a spelling that `flashjit variants` lists; NULL: the engine chooses */
  const flashjit_window* window;  /* NULL: none */
  const DLTensor* alibi_slopes;   /* the score of query i and key j loses slope * |i + seqlen_kv - seqlen_q - j|:
                                     f32 [num_heads_q] or [batch, num_heads_q]; NULL: none */
  const DLTensor* sinks;          /* attention sinks, one more score in each row's softmax, that no key stands for:
                                     shapes as of alibi_slopes; NULL: none */
  int64_t chunk;                  /* query i sees only the chunk of so many keys that key i + seqlen_kv - seqlen_q is
                                     in; 0: all */
  float softcap;                  /* scores become softcap * tanh(score / softcap), before slopes; 0: none */
  int32_t reserved;               /* 0 */
  const DLTensor* bias;           /* added to scores, after slopes: kDLFloat 16 or 32 or kDLBfloat 16 [batch,
                                     num_heads_q, seqlen_q, seqlen_kv], 1 for all but the last; NULL: none */
  const DLTensor* boolean_mask;   /* false: the query does not see the key: kDLBool 8, shapes as of bias; NULL: none */
  const DLTensor* documents;      /* a query sees the keys of its own document, that of key i + seqlen_kv - seqlen_q:
                                     kDLInt 32 [batch, seqlen_kv], batch may be 1 for all; NULL: none */
  const DLTensor* prefix;         /* as causal, and the first so many keys: kDLInt 32 [batch]; NULL: none */
  const DLTensor* tree;           /* which of the last seqlen_q keys, the queries' own, a query sees, in bits: kDLInt 64
                                     [batch, seqlen_q, words], batch may be 1 for all; NULL: none */
  const flashjit_function* score; /* what becomes of scores after all else; NULL: they stay */
  const flashjit_function* mask;  /* beside the other masks; NULL: none */
  const DLTensor* query_offsets;  /* what score and mask call the first query and the first key of each sequence: */
  const DLTensor* key_offsets;    /* kDLInt 32 [batch]; NULL: 0 */
  const DLTensor* block_mask;     /* of flashjit_block_mask: blocks that it shows to be hidden are passed over; NULL:
                                     none is */
  double dropout;                 /* probabilities become 0 at random with this probability, and the output is divided
                                     by the share that stays: from 0, for none, to below 1 */
  uint64_t dropout_seed, dropout_offset; /* what the choice depends on, beside the position: see flashjit/dropout.h */
  const DLTensor* dropout_state;         /* in their place, kDLInt 64 [2] on the device; NULL: none */
  const DLTensor* dropout_mask;          /* in place of the choice: false becomes 0: kDLBool 8, shapes as of bias; the
                                            output is divided by 1 - dropout; NULL: none */
  /* Ragged batches: sequences of different lengths, which stand on the device and which the host never reads. All of
     these are kDLInt 32 and contiguous; NULL: nothing is said. Beside cu_seqlens_q, q and out are [total, num_heads_q,
     ...] and lse is [num_heads_q, total], or each has a batch of 1 in front; beside cu_seqlens_kv likewise k and v. The
     rest holds for each sequence by itself; flashjit/attention.h has the rules. */
  const DLTensor* cu_seqlens_q;     /* query sequence b has the rows from [b] to [b + 1] of q and out: [batch + 1] */
  const DLTensor* cu_seqlens_kv;    /* likewise of k and v */
  const DLTensor* seqused_q;        /* of these rows, or of those of batch entry b, the first so many count: [batch] */
  const DLTensor* seqused_kv;       /* likewise of k and v */
  const DLTensor* leftpad_kv;       /* and not the first so many of k and v: [batch] */
  const DLTensor* batch_indices_kv; /* the batch entry of k and v that sequence b has its keys in: [batch]; not beside
                                       cu_seqlens_kv */
  int64_t max_seqlen_q, max_seqlen_kv; /* upper bounds of these lengths, for a ragged batch; 0: as many as there are
                                          rows */
  /* A ragged batch whose keys and values stand in pages: k and v are [pages, page_size, num_heads_kv, ...] with any
     strides, and key j of sequence b is row j % page_size of page [b][j / page_size], for as many keys as seqused_kv
     says: kDLInt 32 [batch, entries], the last dimension contiguous. With batch_indices_kv sequence b has that row of
     the table. Not beside cu_seqlens_kv and leftpad_kv; NULL: none. */
  const DLTensor* page_table;
  const flashjit_plan* plan; /* the call makes no list of tiles, allocates nothing, and runs the plan's variant. For the
                                problem and the sizes that it was made for; calls with one plan must follow one another
                                on the device. NULL: none */
  int64_t fixed_split_size;  /* batch-invariant: keys are split so many at a time, and what comes of a row depends, bit
                                by bit, on that row alone (attention.h). 0: as the GPU wants it */
  /* What k and v of kDLFloat8_e4m3fn are multiplied by to become what was stored: f32 [1], [num_heads_kv], or k without
     its last dimension. Both or none, both for each token or neither; NULL: 1. Beside q of kDLFloat8_e4m3fn each may be
     NULL, and they are f32 [1], [num_heads_kv] or [batch, num_heads_kv], and positive. */
  const DLTensor* k_scale;
  const DLTensor* v_scale;
  /* Of q of kDLFloat8_e4m3fn, likewise: f32 [1], [num_heads_q] or [batch, num_heads_q]; NULL: 1. */
  const DLTensor* q_scale;
  int32_t fast_sums;    /* 1: beside such q products with v are summed by the tensor core alone, and not in f32 */
  DLDataType out_dtype; /* of out beside such q: kDLFloat 16, kDLBfloat 16 or kDLFloat8_e4m3fn; all 0:
                           kDLBfloat 16 */
  /* Keys in two tensors, as caches of MLA are: the last columns of keys, of the dtype of q and without scales: [batch,
     seqlen_kv, num_heads_kv, rotary_dim], or as k else has it; k then has the head dim of v (attention.h). NULL: none.
     Not beside q of kDLFloat8_e4m3fn. */
  const DLTensor* k_rotary;
  const DLTensor* out_scale; /* what out of kDLFloat8_e4m3fn is to be multiplied by to become the result: f32 [1]; NULL:
                                1 */
} flashjit_attention_options;
#define FLASHJIT_ATTENTION_OPTIONS_INIT                                                                               \
  {                                                                                                                   \
    sizeof(flashjit_attention_options), 0, 0, 0.0f, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0.0f, 0, NULL, NULL, NULL, \
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0,    \
        NULL, NULL, 0, NULL, NULL, NULL, 0, {0, 0, 0}, NULL, NULL                                                     \
  }

/* out = softmax(scale * q k^T) v, enqueued on the stream. Shapes and rules are those of flashjit::attention
   (flashjit/attention.h): q [batch, seqlen_q, num_heads_q, head_dim], k and v [batch, seqlen_kv, num_heads_kv, ...],
   out [batch, seqlen_q, num_heads_q, head_dim_v] in the caller's memory, all of kDLFloat 16 or kDLBfloat 16, k and v
   also of kDLFloat8_e4m3fn 8, and beside these q, on kDLCUDA (on kDLCPU for an engine that emulates). Of inputs of 8
   bits, here and wherever they are named, all may be of kDLFloat8_e5m2. strides may be NULL: packed. options may be
   NULL. */
flashjit_status flashjit_attention(flashjit_engine* engine, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                                   const DLTensor* out, const flashjit_attention_options* options);

/* Where gradients of q, k and v go, and of the bias, the slopes and the sinks of the options; NULL: not computed. Each
   has the shape of what it is of, in the caller's memory: dq in the dtype of q; dk and dv in that of k, or both in f32;
   dbias in that of the bias or in f32; dslopes and dsinks in f32. */
typedef struct flashjit_gradients {
  size_t struct_size;
  const DLTensor *dq, *dk, *dv;
  const DLTensor *dbias, *dslopes, *dsinks;
  int32_t deterministic; /* 0 or 1: all of them are the same, bit by bit, in every run with the same inputs. Not beside
                            dbias of a bias that batch entries, heads or queries share: FLASHJIT_UNSUPPORTED */
  int32_t reserved;      /* 0 */
} flashjit_gradients;
#define FLASHJIT_GRADIENTS_INIT \
  { sizeof(flashjit_gradients), NULL, NULL, NULL, NULL, NULL, NULL, 0, 0 }
/* Gradients of a number that depends on what flashjit_attention gave, on out by dout, of its shape and dtype, and on
   lse by dlse, f32 (NULL: not), enqueued on the stream. Rules are those of flashjit::attention_backward
   (flashjit/backward.h). options are those of that call, but without lse, plan and fixed_split_size; variant is one of
   the backward kernels, as flashjit::parse_backward_variant reads it. options may be NULL. A score is
   differentiated by the score, and what it captures gets no gradient. FLASHJIT_UNSUPPORTED for what has no backward
   kernels. */
flashjit_status flashjit_attention_backward(flashjit_engine* engine, const DLTensor* dout, const DLTensor* q,
                                            const DLTensor* k, const DLTensor* v, const DLTensor* out,
                                            const DLTensor* lse, const DLTensor* dlse, const flashjit_gradients* into,
                                            const flashjit_attention_options* options);

/* Plans: the list of tiles of a ragged batch is made once, for any number of calls with the same problem and sizes: all
   layers of a serving step. flashjit/engine.h has the rules. In all of these functions q, k, v and options are those of
   the calls, without a plan; of q, k and v only sizes, strides and the device count.
   Where keys are split a plan is also the memory for partial results, and calls of any batch may have one. Calls with
   one plan must follow one another on the device, from whichever threads; updating or destroying it waits for calls
   that have begun. It must outlive their work, and graphs that captured it, and may outlive its engine. */

/* How many words of memory a plan takes, which depends on sizes, window and chunk, and not on lengths. */
flashjit_status flashjit_plan_words(flashjit_engine* engine, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                                    const flashjit_attention_options* options, int64_t* words);
/* Makes one on the stream of the options, of what offsets, lengths, padding and indices say when the stream comes to
   it, and the kernels that its calls need. memory is the caller's, kDLInt 32 [words] or more, packed, aligned to 16
   bytes, on the device of q, must live as long as the plan's work, and nobody else may write to it meanwhile; NULL: the
   plan has its own, from the stream's pool. On failure *plan is NULL. */
flashjit_status flashjit_plan_create(flashjit_engine* engine, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                                     const flashjit_attention_options* options, const DLTensor* memory,
                                     flashjit_plan** plan);
/* Makes it anew in place, for the same problem and sizes: one kernel on the stream, which may be captured. */
flashjit_status flashjit_plan_update(flashjit_engine* engine, flashjit_plan* plan, const DLTensor* q, const DLTensor* k,
                                     const DLTensor* v, const flashjit_attention_options* options);
/* NULL is allowed. Frees memory of its own in the order of the stream that it was made on. */
void flashjit_plan_destroy(flashjit_plan* plan);

/* What a plan is for. Texts live as long as the plan. */
typedef struct flashjit_plan_info {
  size_t struct_size;
  const char* problem; /* "fwd-bf16-d128-causal-ragged" */
  const char* variant; /* as the options take it */
  int64_t words;       /* of its memory */
} flashjit_plan_info;
#define FLASHJIT_PLAN_INFO_INIT \
  { sizeof(flashjit_plan_info), NULL, NULL, 0 }
flashjit_status flashjit_get_plan_info(const flashjit_plan* plan, flashjit_plan_info* info);

/* The lengths that a block mask is for; batch or num_heads_q 1: for all, where no predicate depends on them. It is as
   it is here in every version. */
typedef struct flashjit_mask_shape {
  int64_t batch, num_heads_q, seqlen_q, seqlen_kv;
} flashjit_mask_shape;
/* The sizes of a block mask, kDLInt 32. */
enum { FLASHJIT_BLOCK_MASK_RANK = 5 };
flashjit_status flashjit_block_mask_dims(const flashjit_mask_shape* shape, int64_t dims[FLASHJIT_BLOCK_MASK_RANK]);
/* Writes which keys boolean_mask, documents, tree and mask of the options leave, as flashjit::Engine::block_mask does:
   for all calls with the same of these, the same offsets and these lengths. Of the other options only stream matters.
   into is packed. */
flashjit_status flashjit_block_mask(flashjit_engine* engine, const flashjit_attention_options* options,
                                    const flashjit_mask_shape* shape, const DLTensor* into);

/* What attention over some of the keys gave. It is as it is here in every version. */
typedef struct flashjit_partial {
  const DLTensor* out; /* [batch, seqlen_q, num_heads_q, head_dim_v], kDLFloat 16 or 32 or kDLBfloat 16 */
  const DLTensor* lse; /* f32 [batch, num_heads_q, seqlen_q] */
} flashjit_partial;
/* Joins them to what attention over all of these keys gives, as flashjit::merge does (flashjit/merge.h): out of any of
   these dtypes, and its log-sum-exp; lse may be NULL with at most 16 parts. A part may lie where the result goes.
   With more than 16, out has the dtype of the parts, and what lies there is among the first 16. */
flashjit_status flashjit_merge(flashjit_engine* engine, const flashjit_partial* parts, size_t part_count,
                               const DLTensor* out, const DLTensor* lse, void* stream);

/* Where new tokens go, and what becomes of them on the way; flashjit/append.h has the rules. NULL: nothing is said.
   Whole numbers are kDLInt 32, slots and positions also kDLInt 64, and contiguous, with one for each token of k (total)
   or each sequence (batch). */
typedef struct flashjit_append_options {
  size_t struct_size;
  void* stream;                     /* CUstream or cudaStream_t; NULL: the default stream */
  const DLTensor* slots;            /* row [t] % page_size of page [t] / page_size; negative: nowhere: [total]. Beside
                                       none of the following five, of which else seqused_kv must be given */
  const DLTensor* seqused_kv;       /* rows of a sequence with its new tokens, which are the last ones: [batch] */
  const DLTensor* cu_seqlens;       /* sequence b has the new tokens from [b] to [b + 1]: [batch + 1] */
  const DLTensor* page_table;       /* the pages of its rows: [batch, entries] */
  const DLTensor* batch_indices_kv; /* the batch entry of the caches, or row of the table, that it has: [batch] */
  const DLTensor* leftpad_kv;       /* rows before its first key: [batch]; not beside page_table */
  const DLTensor* rotary_cos;       /* k, and q, turn by these angles: kDLFloat 16 or 32 or kDLBfloat 16 [positions, */
  const DLTensor* rotary_sin;       /* rotary_dim / 2] */
  const DLTensor* positions;        /* of each token; NULL: its place in its sequence: [total] */
  const DLTensor* q;          /* queries of the same tokens, and where they go when they have turned; q_out may be */
  const DLTensor* q_out;      /* q itself */
  int32_t rotary_interleaved; /* 0: elements i and i + rotary_dim / 2 turn together; 1: 2 i and 2 i + 1 */
  int32_t reserved;           /* 0 */
  /* Of caches of 8 bits, as attention takes them: f32 [1] or [num_heads_kv], by which rows are divided; or
     k_cache without its last dimension, which are written: the largest magnitude of a row over 448, or 57344. NULL:
     1. */
  const DLTensor* k_scale;
  const DLTensor* v_scale;
  /* The last columns of keys, which turn in place of k, and where they go, k_rotary of attention: as k and as k_cache,
     but for the head dim, and of the dtype of k. Beside them v_cache may be k_cache, v being k and v_scale k_scale.
     Both or NULL. */
  const DLTensor* k_rotary;
  const DLTensor* k_rotary_cache;
} flashjit_append_options;
#define FLASHJIT_APPEND_OPTIONS_INIT                                                                               \
  {                                                                                                                \
    sizeof(flashjit_append_options), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, \
        NULL, NULL, NULL, NULL                                                                                     \
  }
/* Writes new keys and values, [batch, seqlen, num_heads_kv, ...] or beside slots or cu_seqlens also [total, ...], into
   their rows of the caches, [pages, page_size, num_heads_kv, ...] or without pages [batch, seqlen, ...], as
   flashjit::append does (flashjit/append.h): all of kDLFloat 16 or kDLBfloat 16, the caches also of kDLFloat8_e4m3fn 8
   or kDLFloat8_e5m2 8, in one launch. */
flashjit_status flashjit_append(flashjit_engine* engine, const DLTensor* k, const DLTensor* v, const DLTensor* k_cache,
                                const DLTensor* v_cache, const flashjit_append_options* options);

/* What has a scale of its own. */
typedef enum flashjit_scale_of {
  FLASHJIT_SCALE_OF_HEAD = 0,   /* each head of a batch entry: [batch, num_heads] */
  FLASHJIT_SCALE_OF_TENSOR = 1, /* all of x: [1] */
  FLASHJIT_SCALE_OF_BLOCK = 2   /* of a head block_size rows: [batch, num_heads, ceil(seqlen / block_size)] */
} flashjit_scale_of;
/* What rows become on their way into 8 bits; flashjit/quantize.h has the rules. NULL: a scale for each head, and
   nothing else. */
typedef struct flashjit_quantize_options {
  size_t struct_size;
  void* stream;               /* CUstream or cudaStream_t; NULL: the default stream */
  int32_t scale_of;           /* a flashjit_scale_of */
  int32_t scale_is_given;     /* 1: scales are read, and not written */
  int64_t block_size;         /* rows; 0 unless scale_of is of blocks */
  uint64_t rotation_seed;     /* of signs; 0 unless rows are rotated */
  int32_t rotates;            /* 1: each row is multiplied by random signs and a Hadamard matrix */
  int32_t rotary_interleaved; /* 0: elements i and i + rotary_dim / 2 turn together; 1: 2 i and 2 i + 1 */
  const DLTensor* rotary_cos; /* rows turn by these angles before: kDLFloat 16 or 32 or kDLBfloat 16 [positions, */
  const DLTensor* rotary_sin; /* rotary_dim / 2] */
  const DLTensor* positions;  /* kDLInt 32 or 64 [batch * seqlen]; NULL: a row's place in its batch entry */
  int32_t bytes_are_e5m2;     /* 1: out of kDLUInt 8 has bytes of kDLFloat8_e5m2; 0: of kDLFloat8_e4m3fn */
  int32_t reserved;           /* 0 */
} flashjit_quantize_options;
#define FLASHJIT_QUANTIZE_OPTIONS_INIT \
  { sizeof(flashjit_quantize_options), NULL, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, 0, 0 }
/* Writes x, [batch, seqlen, num_heads, head_dim] or [total, num_heads, head_dim] of kDLFloat 16 or kDLBfloat 16, into
   out of its shape and kDLFloat8_e4m3fn 8 or kDLFloat8_e5m2 8, or kDLUInt 8 for bytes, and what elements of that are to
   be multiplied by into scale, f32, of the shape that scale_of says, without the first size where x has three, as
   flashjit::quantize does (flashjit/quantize.h). */
flashjit_status flashjit_quantize(flashjit_engine* engine, const DLTensor* x, const DLTensor* out,
                                  const DLTensor* scale, const flashjit_quantize_options* options);

/* Which probabilities dropout keeps, of calls with these numbers and lengths: 1 or 0 into host memory of shape [batch,
   num_heads_q, seqlen_q, seqlen_kv], packed. num_heads_q is that of the calls. */
flashjit_status flashjit_dropout_mask(double probability, uint64_t seed, uint64_t offset,
                                      const flashjit_mask_shape* shape, uint8_t* kept);

/* What is compiled in: the rest is up to each call. */
typedef struct flashjit_problem {
  size_t struct_size;
  DLDataType dtype;
  int32_t head_dim, head_dim_v; /* head_dim_v 0: head_dim */
  int32_t causal;
  int32_t window;       /* 1: of calls that have a window, whatever its size; with right = 0 they are causal, too */
  int32_t ragged;       /* 1: of calls that have any of cu_seqlens_q to batch_indices_kv, or page_table; not beside
                           block_mask */
  int32_t softcap;      /* 1: of calls that have a softcap, whatever its value */
  int32_t alibi;        /* 1: of calls that have alibi_slopes */
  int32_t sinks;        /* 1: of calls that have sinks */
  int32_t chunk;        /* 1: of calls that have a chunk, whatever its size */
  int32_t dropout;      /* 1: of calls that have dropout, whatever its probability and seed */
  int32_t dropout_mask; /* 1: of calls that have dropout_mask */
  DLDataType bias;      /* of the bias that calls have; all 0: they have none */
  int32_t boolean_mask; /* 1: of calls that have boolean_mask */
  int32_t documents;    /* 1: of calls that have documents */
  int32_t prefix;       /* 1: of calls that have prefix; causal then makes no difference, as in calls */
  int32_t tree;         /* 1: of calls that have tree */
  int32_t block_mask;   /* 1: of calls that have block_mask; beside what it is made of. flashjit_block_mask is prepared,
                           too */
  /* As calls have them; NULL: they have none. Numbers may be any of the same is_integer. Of a tensor only its type
     counts: dtype, ndim, and whether the elements of its last dimension are neighbours. data may be NULL, and device
     anything. */
  const flashjit_function* score;
  const flashjit_function* mask;
  int32_t paged;             /* 1: of calls that have page_table, whatever the size of pages; beside ragged */
  int32_t reserved;          /* 0 */
  int32_t e4m3;              /* 1: of calls whose k and v are of kDLFloat8_e4m3fn, or see e5m2 */
  int32_t token_scales;      /* 1: of those with a scale for each token and head */
  int32_t e4m3_queries;      /* 1: of those whose q is of it, too; dtype is out's then */
  int32_t fast_sums;         /* 1: of those that have it */
  int32_t block_scales;      /* 1: of those with scales of blocks of rows */
  int32_t k_rotary;          /* 1: of calls that have k_rotary, with the head dims of q and of v */
  int32_t latent;            /* 1: of calls whose v is the first columns of k, in the same memory; head_dim above 256,
                                head_dim_v of whole 128s */
  int32_t values_transposed; /* 1: of calls whose v comes transposed, the stride of its keys 1; beside e4m3_queries, and
                                not ragged */
  int32_t out_e4m3;          /* 1: of those whose out is of kDLFloat8_e4m3fn; dtype is kDLBfloat 16 then */
  int32_t e5m2;              /* 1: all these, but out, are of kDLFloat8_e5m2; beside e4m3 */
} flashjit_problem;
#define FLASHJIT_PROBLEM_INIT                                                                                        \
  {                                                                                                                  \
    sizeof(flashjit_problem), {kDLBfloat, 16, 1}, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0, 0, 0}, 0, 0, 0, 0, 0, NULL, \
        NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                                                     \
  }

/* Makes and loads all that calls for this problem need on this device (-1: the current context's, or 0). */
flashjit_status flashjit_prepare(flashjit_engine* engine, const flashjit_problem* problem, int32_t device);

/* What of gradients is compiled in. */
typedef struct flashjit_gradient_kinds {
  size_t struct_size;
  int32_t f32;           /* 1: dk and dv are of kDLFloat 32 */
  int32_t dbias;         /* 1: of calls that have dbias, of a problem with a bias */
  int32_t dslopes;       /* 1: of calls that have dslopes, of a problem with alibi */
  int32_t dsinks;        /* 1: of calls that have dsinks, of a problem with sinks */
  int32_t deterministic; /* 1: of calls that have it */
  int32_t reserved;      /* 0 */
} flashjit_gradient_kinds;
#define FLASHJIT_GRADIENT_KINDS_INIT \
  { sizeof(flashjit_gradient_kinds), 0, 0, 0, 0, 0, 0 }
/* The same for calls of flashjit_attention_backward with dq, dk and dv for calls with this problem. kinds may be NULL.
   FLASHJIT_UNSUPPORTED for what has no backward kernels. */
flashjit_status flashjit_prepare_backward(flashjit_engine* engine, const flashjit_problem* problem,
                                          const flashjit_gradient_kinds* kinds, int32_t device);

/* --- Reference --------------------------------------------------------------------------------------------------- */

/* What flashjit_attention computes, on the CPU in double precision: flashjit::Engine::reference. Tensors are in host
   memory: q, k and v of kDLFloat 16, 32 or 64 or kDLBfloat 16, or of kDLFloat8_e4m3fn as there, out, and lse, which may
   be NULL, of kDLFloat 64. options may be NULL; its lse must be. Texts are applied by the engine's device. */
flashjit_status flashjit_reference(flashjit_engine* engine, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                                   const DLTensor* out, const DLTensor* lse, const flashjit_attention_options* options);
/* Its gradients, all into kDLFloat 64: flashjit::Engine::reference_backward. dout has the shape of out and any of these
   dtypes; dlse, f32 or f64, may be NULL. */
flashjit_status flashjit_reference_backward(flashjit_engine* engine, const DLTensor* dout, const DLTensor* q,
                                            const DLTensor* k, const DLTensor* v, const DLTensor* dlse,
                                            const flashjit_gradients* into, const flashjit_attention_options* options);

/* --- Measuring --------------------------------------------------------------------------------------------------- */

/* Rate of a loop of nothing but mma.sync in bf16 on the current device, in TFLOPS. */
flashjit_status flashjit_measure_mma_ceiling(flashjit_engine* engine, double* tflops);

#ifdef __cplusplus
}
#endif

#endif
