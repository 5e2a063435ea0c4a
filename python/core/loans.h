/* SPDX-License-Identifier: Apache-2.0 */
/* The arrays of a call, which Python code has made capsules or descriptions of (flashjit/_arrays.py): they are on loan
   until the call has ended, however it did. */
#ifndef FLASHJIT_PYTHON_CORE_LOANS_H
#define FLASHJIT_PYTHON_CORE_LOANS_H

#include "python/core/core.h"

enum { kMaxRank = 8, kMostLoans = kTensorOptions + 10 + 2 * kMostCaptures };

/* A tensor that a call has on loan. */
typedef struct Loan {
  DLTensor view;
  DLManagedTensor* managed; /* at most one of these two, to be given back */
  ManagedTensor* versioned;
  int64_t shape[kMaxRank], strides[kMaxRank]; /* of a description */
} Loan;

typedef struct Call {
  Settings settings;
  GivenFunction score, mask;
  Loan own_loans[kMostLoans];
  Loan* loans; /* these, unless the call has more */
  int loan_count;
  const char *wrong_name, *wrong; /* the first thing that is; it is raised once all is given back */
} Call;

/* Without what only becomes known by reading. */
void begin_call(Call* call);
/* Of (text, tensors, numbers) or None: borrowed. 0 on failure. */
int read_described(PyObject* described, GivenFunction* function);
/* What a call has but for its tensors: functions that are described, the options that are numbers, and a plan. 0 on
   failure. */
int read_options(Call* call, PyObject* engine, PyObject* score, PyObject* mask, PyObject* numbers, PyObject* plan,
                 unsigned long long stream);

/* NULL for None, which the library judges, and where something is wrong, as the call then says. */
const DLTensor* lend(Call* call, const char* name, PyObject* source, int is_output);

typedef struct Inputs {
  const DLTensor *q, *k, *v;
} Inputs;
Inputs lend_inputs(Call* call, PyObject* q, PyObject* k, PyObject* v);

/* Fields of a struct. */
typedef struct TensorOptions {
  const TensorOption* first;
  int count;
  void* fields;
} TensorOptions;
/* sources: a dict. */
void lend_named(Call* call, const TensorOptions* options, PyObject* sources);
/* Those of attention. */
void lend_options(Call* call, PyObject* sources);
/* What functions capture. */
void lend_all_captures(Call* call);

/* Borrowed, in the order of the interface's tuple; None is one that is not to be computed. */
typedef struct Gradients {
  PyObject *dq, *dk, *dv, *dbias, *dslopes, *dsinks;
} Gradients;
flashjit_gradients lend_gradients(Call* call, const Gradients* given);

/* Gives all back. None, or NULL with what was wrong, or what the status says, as an exception. */
PyObject* finish_call(Call* call, flashjit_status status);

#endif
