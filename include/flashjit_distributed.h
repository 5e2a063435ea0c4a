/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of libflashjit_distributed, C99, over that of libflashjit (flashjit.h), whose engines, structs,
   status codes and flashjit_last_error() these functions take: attention over sequences of which each of several GPUs
   has a part. What each promises stands in flashjit/distributed.h; docs/distributed.md. */
#ifndef FLASHJIT_DISTRIBUTED_H
#define FLASHJIT_DISTRIBUTED_H

#include "flashjit.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- Sharding ---------------------------------------------------------------------------------------------------- */

/* How the positions of a sequence are shared out among ranks: flashjit::distributed::Layout. */
typedef enum flashjit_layout {
  FLASHJIT_CONTIGUOUS = 0, /* rank r has the r-th of equal parts */
  FLASHJIT_ZIGZAG = 1,     /* of twice as many parts the r-th from the front and the r-th from the back */
  FLASHJIT_STRIPED = 2     /* positions r, r + ranks, r + 2 ranks, ... */
} flashjit_layout;

/* Which positions each rank has. This struct never changes. */
typedef struct flashjit_sharding {
  int64_t seqlen;
  int32_t layout; /* a flashjit_layout */
  int32_t ranks;
} flashjit_sharding;

/* The positions first, first + step, ..., so many of them. This struct never changes. */
typedef struct flashjit_span {
  int64_t first, count, step;
} flashjit_span;

/* Writes the positions of a rank, in the order of the rows of its tensors, and how many spans they are. */
#define FLASHJIT_MOST_SPANS 2
flashjit_status flashjit_sharding_spans(const flashjit_sharding* sharding, int32_t rank,
                                        flashjit_span spans[FLASHJIT_MOST_SPANS], size_t* count);

/* The same of packed sequences, sequence i of which has the positions from cu_seqlens[i] to cu_seqlens[i + 1]:
   flashjit::distributed::Sharding::packed. cu_seqlens: sequences + 1 offsets in host memory, the last of which is the
   sharding's seqlen; NULL: not packed. Writes as many spans as there is room for, and how many there are. */
flashjit_status flashjit_packed_spans(const flashjit_sharding* sharding, const int64_t* cu_seqlens, size_t sequences,
                                      int32_t rank, flashjit_span* spans, size_t room, size_t* count);

/* --- Groups ------------------------------------------------------------------------------------------------------ */

/* The ranks that compute together, as one of them sees them. For one thread at a time. */
typedef struct flashjit_group flashjit_group;

typedef struct flashjit_group_options {
  size_t struct_size;
  int32_t device;     /* the CUDA device of this rank; of a communicator that exists it is that communicator's */
  int32_t reserved;   /* 0 */
  int64_t timeout_ms; /* how long an exchange may wait for a peer, from 1 to those of a year; 0: ten minutes */
} flashjit_group_options;
#define FLASHJIT_GROUP_OPTIONS_INIT \
  { sizeof(flashjit_group_options), 0, 0, 0 }

/* What NCCL's ranks find each other by: made on one of them and brought to all others by the application. */
#define FLASHJIT_UNIQUE_ID_BYTES 128
flashjit_status flashjit_make_unique_id(char id[FLASHJIT_UNIQUE_ID_BYTES]);

/* Groups over NCCL: of an id, which all ranks must do at the same time, or of an ncclComm_t, which stays the caller's.
   options may be NULL. On failure *group is NULL. */
flashjit_status flashjit_group_from_unique_id(const char id[FLASHJIT_UNIQUE_ID_BYTES], int32_t rank, int32_t size,
                                              const flashjit_group_options* options, flashjit_group** group);
flashjit_status flashjit_group_from_nccl(void* communicator, const flashjit_group_options* options,
                                         flashjit_group** group);

/* Packed memory that goes to a rank or comes from it. This struct never changes. */
typedef struct flashjit_message {
  void* data;
  size_t bytes;
  int32_t peer;
  int32_t reserved; /* 0 */
} flashjit_message;

/* Another transport, as flashjit::distributed::Transport says of one: exchanges of messages in the order of streams.
   Functions are given the context. Those that return an int return 0, or anything else when the group has failed: then
   they write why into error, with a null character at the end, and none but abort() and destroy() is called any more.
   They are called by whichever thread makes the group's calls, one at a time. */
#define FLASHJIT_TRANSPORT_ERROR_BYTES 256
#define FLASHJIT_HOST_MEMORY (-2)
typedef struct flashjit_transport {
  size_t struct_size;
  void* context;
  int32_t rank, size;
  int32_t device;   /* whose memory it carries: a CUDA ordinal, or FLASHJIT_HOST_MEMORY, which an engine that emulates
                       wants */
  int32_t reserved; /* 0 */
  /* Begins an exchange once the stream has come so far, and does not wait for it. Memory is left alone until it is
     finished; the arrays are gone when it returns. */
  int (*start)(void* context, const flashjit_message* sends, size_t send_count, const flashjit_message* receives,
               size_t receive_count, void* after, char* error);
  /* What follows on the stream waits for the oldest exchange that is not finished. */
  int (*finish)(void* context, void* before, char* error);
  /* Waits, on the host, for all exchanges that were started. */
  int (*wait)(void* context, char* error);
  /* This rank gives up: others must learn of it, or wait no longer than some time. */
  void (*abort)(void* context);
  /* Called when the group is destroyed; NULL: nothing is. */
  void (*destroy)(void* context);
} flashjit_transport;
#define FLASHJIT_TRANSPORT_INIT \
  { sizeof(flashjit_transport), NULL, 0, 1, FLASHJIT_HOST_MEMORY, 0, NULL, NULL, NULL, NULL, NULL }
/* The struct is copied. Its context is the group's from then on; on failure it stays the caller's. */
flashjit_status flashjit_group_from_transport(const flashjit_transport* transport, flashjit_group** group);

/* NULL is allowed. All streams must have come past the group's calls. */
void flashjit_group_destroy(flashjit_group* group);

/* Waits, on the host, for all exchanges so far: FLASHJIT_COMMUNICATION when the group has failed. */
flashjit_status flashjit_group_wait(flashjit_group* group);

/* All ranks take the variants that the first one's engine would choose: flashjit::distributed::agree. */
flashjit_status flashjit_distributed_agree(flashjit_engine* engine, flashjit_group* group);

/* --- Attention --------------------------------------------------------------------------------------------------- */

/* What goes where: flashjit::distributed::Scheme. */
typedef enum flashjit_scheme {
  FLASHJIT_SCHEME_AUTOMATIC = 0,
  FLASHJIT_SCHEME_ALL_GATHER = 1,
  FLASHJIT_SCHEME_RING = 2,
  FLASHJIT_SCHEME_ALL_TO_ALL = 3,
  FLASHJIT_SCHEME_TWO_LEVEL = 4
} flashjit_scheme;

typedef struct flashjit_distributed_options {
  size_t struct_size;
  flashjit_sharding queries;
  const flashjit_sharding* keys; /* NULL: as queries */
  int32_t scheme;                /* a flashjit_scheme */
  int32_t ranks_of_host;         /* how many neighbouring ranks are of one host; 0: all */
  /* Of packed sequences, as flashjit_packed_spans has them: read during the call. keys must be NULL then. */
  const int64_t* cu_seqlens;
  size_t sequences;
} flashjit_distributed_options;
#define FLASHJIT_DISTRIBUTED_OPTIONS_INIT \
  { sizeof(flashjit_distributed_options), {0, FLASHJIT_CONTIGUOUS, 1}, NULL, FLASHJIT_SCHEME_AUTOMATIC, 0, NULL, 0 }

/* The sizes of whole tensors of 16-bit dtypes: flashjit::distributed::Sizes. This struct never changes. */
typedef struct flashjit_whole_sizes {
  int64_t batch, num_heads_q, num_heads_kv, head_dim, head_dim_v;
} flashjit_whole_sizes;

/* What a scheme costs: flashjit::distributed::Estimate. This struct never changes. */
typedef struct flashjit_estimate {
  int32_t scheme;   /* a flashjit_scheme */
  int32_t reserved; /* 0 */
  int64_t bytes;    /* that the rank which receives most receives */
  int64_t calls;    /* of attention, of the rank that makes most */
  double seconds;   /* of the slowest rank, by a model of time */
} flashjit_estimate;

/* Of each scheme that can run, the fastest first, which is what FLASHJIT_SCHEME_AUTOMATIC takes:
   flashjit::distributed::estimates, and with gradients 1 gradient_estimates. Writes them and how many they are. options
   are those of the call, and may be NULL. */
#define FLASHJIT_MOST_ESTIMATES 4
flashjit_status flashjit_distributed_estimates(flashjit_engine* engine, const flashjit_whole_sizes* sizes,
                                               int32_t gradients, const flashjit_attention_options* options,
                                               const flashjit_distributed_options* distributed,
                                               flashjit_estimate estimates[FLASHJIT_MOST_ESTIMATES], size_t* count);

/* Attention over shards, into this rank's rows of the output: flashjit::distributed::attention. All ranks make the same
   calls. options, as of a call with the whole sequences, may be NULL; its lse is of this rank's queries. */
flashjit_status flashjit_distributed_attention(flashjit_engine* engine, flashjit_group* group, const DLTensor* q,
                                               const DLTensor* k, const DLTensor* v, const DLTensor* out,
                                               const flashjit_attention_options* options,
                                               const flashjit_distributed_options* distributed);

/* Gradients of this rank's q, k and v: flashjit::distributed::attention_backward. dq, dk and dv of into must be given;
   dslopes and dsinks, where all ranks give them, get the sums over all ranks' rows, and dbias that of this rank's rows.
   options are those of the call, without lse. */
flashjit_status flashjit_distributed_attention_backward(flashjit_engine* engine, flashjit_group* group,
                                                        const DLTensor* dout, const DLTensor* q, const DLTensor* k,
                                                        const DLTensor* v, const DLTensor* out, const DLTensor* lse,
                                                        const flashjit_gradients* into,
                                                        const flashjit_attention_options* options,
                                                        const flashjit_distributed_options* distributed);

/* The whole of a tensor of which each rank has a shard, on every rank, into memory of the caller:
   flashjit::distributed::gather. Both of kDLFloat 16 or 32 or kDLBfloat 16, with four dimensions. */
flashjit_status flashjit_distributed_gather(flashjit_engine* engine, flashjit_group* group, const DLTensor* shard,
                                            const DLTensor* whole, const flashjit_sharding* sharding, void* stream);
/* The same of packed sequences. */
flashjit_status flashjit_distributed_gather_packed(flashjit_engine* engine, flashjit_group* group,
                                                   const DLTensor* shard, const DLTensor* whole,
                                                   const flashjit_sharding* sharding, const int64_t* cu_seqlens,
                                                   size_t sequences, void* stream);

#ifdef __cplusplus
}
#endif

#endif
