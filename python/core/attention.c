/* SPDX-License-Identifier: Apache-2.0 */
/* attention(): its arguments, and the way of arrays whose library has DLPack's table of C functions. No Python code
   runs on it. Other arrays take the way through flashjit/_arrays.py and launch.c. */
#include <string.h>

#include "python/core/core.h"

/* --- Arguments --------------------------------------------------------------------------------------------------- */

enum Argument {
  kQ,
  kK,
  kV,
  kCausal,
  kWindow,
  kChunk,
  kScale,
  kSoftcap,
  kDropout,
  kDropoutSeed,
  kDropoutOffset,
  kMaxSeqlenQ,
  kMaxSeqlenKv,
  kFixedSplitSize,
  kAccumulate,
  kScore,
  kMask,
  kOut,
  kLse,
  kStream,
  kVariant,
  kPlan,
  kTensors, /* as tensor_options has them */
  kEngine = kTensors + kTensorOptions,
  kArguments
};
enum { kPositional = kV + 1 };
static const char* const kNames[kArguments] = {[kQ] = "q",
                                               [kK] = "k",
                                               [kV] = "v",
                                               [kCausal] = "causal",
                                               [kWindow] = "window",
                                               [kChunk] = "chunk",
                                               [kScale] = "scale",
                                               [kSoftcap] = "softcap",
                                               [kDropout] = "dropout",
                                               [kDropoutSeed] = "dropout_seed",
                                               [kDropoutOffset] = "dropout_offset",
                                               [kMaxSeqlenQ] = "max_seqlen_q",
                                               [kMaxSeqlenKv] = "max_seqlen_kv",
                                               [kFixedSplitSize] = "fixed_split_size",
                                               [kAccumulate] = "accumulate",
                                               [kScore] = "score",
                                               [kMask] = "mask",
                                               [kOut] = "out",
                                               [kLse] = "lse",
                                               [kStream] = "stream",
                                               [kVariant] = "variant",
                                               [kPlan] = "plan",
                                               [kEngine] = "engine"};
static PyObject* names[kArguments];

static const char* name_of(int argument) {
  const char* const name = kNames[argument];
  return name ? name : tensor_options[argument - kTensors].name;
}

int prepare_keywords(void) {
  for (int i = 0; i < kArguments; ++i) {
    names[i] = PyUnicode_InternFromString(name_of(i));
    if (!names[i]) return 0;
  }
  return 1;
}

/* Keywords in a caller's source are interned, so that comparing pointers nearly always suffices. */
static int find_keyword(PyObject* keyword, int count) {
  for (int i = 0; i < count; ++i) {
    if (keyword == names[i]) return i;
  }
  for (int i = 0; i < count; ++i) {
    if (PyUnicode_CompareWithASCIIString(keyword, name_of(i)) == 0) return i;
  }
  return -1;
}

/* Fills values, borrowed; those not given stay NULL. The first names count. */
static int read_arguments(PyObject** values, int names_count, PyObject* const* args, Py_ssize_t count,
                          PyObject* keywords) {
  if (count > kPositional) {
    PyErr_Format(PyExc_TypeError, "attention() takes q, k and v by position and the rest by name, was given %zd",
                 count);
    return 0;
  }
  for (Py_ssize_t i = 0; i < count; ++i) values[i] = args[i];
  const Py_ssize_t keyword_count = keywords ? PyTuple_Size(keywords) : 0;
  for (Py_ssize_t i = 0; i < keyword_count; ++i) {
    PyObject* const keyword = PyTuple_GetItem(keywords, i);
    const int name = find_keyword(keyword, names_count);
    if (name < 0 || values[name]) {
      PyErr_Format(PyExc_TypeError, "attention() got %s argument %R", name < 0 ? "an unknown" : "twice the", keyword);
      return 0;
    }
    values[name] = args[count + i];
  }
  for (int i = 0; i < kPositional; ++i) {
    if (values[i]) continue;
    PyErr_Format(PyExc_TypeError, "attention() lacks the argument '%s'", kNames[i]);
    return 0;
  }
  return 1;
}

/* --- What is known of the arrays' types -------------------------------------------------------------------------- */

typedef struct ArrayType {
  PyTypeObject* type;     /* held, so that its address is no other type's */
  const ExchangeApi* api; /* NULL: its arrays are read by Python code */
  int has_gradient;       /* arrays have the attribute requires_grad */
  int is_torch;           /* and are PyTorch's, which may be views that negate, and have tangents */
} ArrayType;

enum { kKnownTypes = 8 }; /* programs have one or two; where there are more, they are found again and again */
static ArrayType known_types[kKnownTypes];
static int next_known_type;
static PyObject *requires_grad, *is_neg, *current_level; /* names of attributes */
static PyObject* forward_ad;                             /* torch.autograd.forward_ad, once it was needed */

/* NULL without an exception where the type has no table that we understand. */
static const ExchangeApi* exchange_api_of(PyTypeObject* type) {
  PyObject* const capsule = PyObject_GetAttrString((PyObject*)type, "__dlpack_c_exchange_api__");
  const ExchangeApi* api = capsule ? (const ExchangeApi*)PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
  Py_XDECREF(capsule);
  PyErr_Clear();
  while (api && api->version.major != kDlpackMajor) api = api->previous;
  return api && api->view_array ? api : NULL;
}

static const ArrayType* array_type_of(PyObject* array) {
  PyTypeObject* const type = Py_TYPE(array);
  for (int i = 0; i < kKnownTypes; ++i) {
    if (known_types[i].type == type) return &known_types[i];
  }
  ArrayType* const known = &known_types[next_known_type];
  next_known_type = (next_known_type + 1) % kKnownTypes;
  Py_XDECREF((PyObject*)known->type);
  Py_INCREF((PyObject*)type);
  known->type = type;
  known->api = exchange_api_of(type);
  known->has_gradient = PyObject_HasAttrString((PyObject*)type, "requires_grad");
  known->is_torch = known->has_gradient && PyObject_HasAttrString((PyObject*)type, "is_neg");
  return known;
}

/* --- Arrays of types with the table ------------------------------------------------------------------------------ */

/* An output: the caller's array, or one that the library of q made. */
typedef struct Output {
  ManagedTensor* made; /* NULL: it is the caller's, or has become a Python object */
  DLTensor view;
} Output;

static void fail_to_allocate(void* context, const char* kind, const char* message) {
  (void)context;
  PyErr_Format(strcmp(kind, "MemoryError") == 0 ? PyExc_MemoryError : PyExc_RuntimeError, "%s", message);
}

static int allocate(const ExchangeApi* api, DLTensor prototype, Output* output) {
  if (api->allocate(&prototype, &output->made, NULL, fail_to_allocate) != 0) return 0;
  output->view = output->made->tensor;
  return 1;
}

static void discard(Output* output) {
  if (output->made && output->made->deleter) output->made->deleter(output->made);
}

/* Takes the tensor away from the output, also on failure: its library has it then. */
static PyObject* to_object(const ExchangeApi* api, Output* output) {
  ManagedTensor* const made = output->made;
  void* object = NULL;
  output->made = NULL;
  return api->import_array(made, &object) == 0 ? (PyObject*)object : NULL;
}

/* Of a new reference, which it takes; -1 on failure. */
static int take_truth(PyObject* value) {
  const int truth = value ? PyObject_IsTrue(value) : -1;
  Py_XDECREF(value);
  return truth;
}

/* Whether anything is differentiated forward just now; -1 on failure. */
static int has_dual_level(void) {
  if (!forward_ad && !(forward_ad = PyImport_ImportModule("torch.autograd.forward_ad"))) return -1;
  PyObject* const level = PyObject_GetAttr(forward_ad, current_level);
  const long number = level ? PyLong_AsLong(level) : -1;
  Py_XDECREF(level);
  return PyErr_Occurred() ? -1 : number >= 0;
}

/* Calls a function of flashjit._arrays that raises if there is something to refuse. */
static int check_by_python(const char* function, const char* name, PyObject* array) {
  PyObject* const check = import_attribute("flashjit._arrays", function);
  PyObject* const done = check ? PyObject_CallFunction(check, "sO", name, array) : NULL;
  Py_XDECREF(check);
  Py_XDECREF(done);
  return done != NULL;
}

/* Integers have no gradients, and views that negate are of the parts of complex numbers. */
static int has_integers(const DLTensor* tensor) {
  return tensor->dtype.code == kDLInt || tensor->dtype.code == kDLUInt;
}

/* A gradient that is asked for would silently be wrong, as nothing records this call; so would be the sign of a view
   that negates what it is of. */
static int check_tensor(PyObject* array, const ArrayType* type, const char* name) {
  int is_special = take_truth(PyObject_GetAttr(array, requires_grad));
  if (is_special == 0 && type->is_torch) is_special = take_truth(PyObject_CallMethodObjArgs(array, is_neg, NULL));
  if (is_special == 0 && type->is_torch) is_special = has_dual_level();
  if (is_special < 0) return 0;
  return is_special == 0 || check_by_python("check_tensor", name, array);
}

/* So that autograd notices when a tensor that it saved is overwritten. */
static int mark_written(PyObject* array) {
  static PyObject* mark;
  if (!array_type_of(array)->has_gradient) return 1;
  if (!mark && !(mark = import_attribute("flashjit._arrays", "mark_written"))) return 0;
  PyObject* const done = PyObject_CallFunctionObjArgs(mark, array, NULL);
  Py_XDECREF(done);
  return done != NULL;
}

static int view(PyObject* array, const char* name, DLTensor* tensor) {
  const ArrayType* const type = array_type_of(array);
  if (type->api->view_array(array, tensor) == 0)
    return !type->has_gradient || has_integers(tensor) || check_tensor(array, type, name);
  PyErr_Clear(); /* it does not know the argument */
  check_by_python("refuse_array", name, array);
  return 0;
}

static int view_captures(Function* function) {
  for (int i = 0; i < function->tensor_count; ++i) {
    if (!view(function->sources[i], function->labels[i], &function->views[i])) return 0;
  }
  return 1;
}

/* Those that are given, into memory of the caller. */
static int view_options(PyObject* const* values, Settings* settings, DLTensor* memory) {
  flashjit_attention_options* const options = &settings->options;
  for (int i = 0; i < kTensorOptions; ++i) {
    if (!is_given(values[kTensors + i])) continue;
    if (!view(values[kTensors + i], tensor_options[i].name, &memory[i])) return 0;
    *place_of(options, &tensor_options[i]) = &memory[i];
  }
  return (!options->score || view_captures(&settings->score)) && (!options->mask || view_captures(&settings->mask));
}

/* A handle, or an object of a library that has one. 0 on failure. */
static int read_stream(PyObject* stream, void** handle) {
  PyObject* number = NULL;
  if (PyLong_Check(stream)) {
    Py_INCREF(stream);
    number = stream;
  } else {
    PyObject* const read = import_attribute("flashjit._arrays", "stream_handle");
    number = read ? PyObject_CallFunctionObjArgs(read, stream, NULL) : NULL;
    Py_XDECREF(read);
  }
  *handle = number ? (void*)(uintptr_t)PyLong_AsUnsignedLongLong(number) : NULL;
  if (number && PyErr_Occurred()) refuse_value("stream", "a handle from 0 to 2**64 - 1", number);
  Py_XDECREF(number);
  return !PyErr_Occurred();
}

static int find_stream(const ExchangeApi* api, PyObject* stream, DLDevice device, void** handle) {
  if (is_given(stream)) return read_stream(stream, handle);
  *handle = NULL;
  return device.device_type == kDLCPU || api->current_stream(device.device_type, device.device_id, handle) == 0;
}

/* Packed sequences, whose offsets are given, may lack the dimension of batches. */
static int require_rank(const char* name, const DLTensor* tensor, const DLTensor* offsets) {
  if (tensor->ndim == 4 || (offsets && tensor->ndim == 3)) return 1;
  raise_error(FLASHJIT_INVALID_ARGUMENT, "%s: rank must be %s, was %d", name, offsets ? "3 or 4" : "4",
              (int)tensor->ndim);
  return 0;
}

static int require_ranks(const DLTensor* q, const DLTensor* v, const flashjit_attention_options* options) {
  return require_rank("q", q, options->cu_seqlens_q) && require_rank("v", v, options->cu_seqlens_kv);
}

/* [batch, seqlen_q, heads, head_dim_v], without batch where q has none, like q in all else, but of bfloat16 where that
   is of 8 bits. */
static int allocate_out(const ExchangeApi* api, const DLTensor* q, const DLTensor* v, Output* out) {
  int64_t shape[4];
  for (int i = 0; i < q->ndim - 1; ++i) shape[i] = q->shape[i];
  shape[q->ndim - 1] = v->shape[v->ndim - 1];
  const DLDataType bf16 = {kDLBfloat, 16, 1};
  const DLTensor prototype = {NULL, q->device, q->ndim, is_of_8_bits(q->dtype) ? bf16 : q->dtype, shape, NULL, 0};
  return allocate(api, prototype, out);
}

/* f32 [batch, heads, seqlen_q], without batch where q has none. */
static int allocate_lse(const ExchangeApi* api, const DLTensor* q, Output* lse) {
  const int heads = q->ndim - 2;
  int64_t shape[] = {q->shape[0], q->shape[heads], q->shape[heads - 1]};
  const DLDataType f32 = {kDLFloat, 32, 1};
  const DLTensor prototype = {NULL, q->device, q->ndim - 1, f32, shape + (4 - q->ndim), NULL, 0};
  return allocate(api, prototype, lse);
}

static PyObject* to_result(const ExchangeApi* api, PyObject* given_out, Output* out, Output* lse) {
  PyObject* out_object = given_out;
  if (out->made) {
    out_object = to_object(api, out);
  } else {
    Py_INCREF(given_out);
  }
  if (!out_object || !lse->made) return out_object;
  PyObject* const lse_object = to_object(api, lse);
  PyObject* const pair = lse_object ? PyTuple_Pack(2, out_object, lse_object) : NULL;
  Py_DECREF(out_object);
  Py_XDECREF(lse_object);
  return pair;
}

/* An error of the library is raised last, since deleters may be Python code, which must not begin with an exception. */
static PyObject* attend(PyObject* const* values, Settings* settings, int with_lse) {
  const ExchangeApi* const api = array_type_of(values[kQ])->api;
  PyObject* const given_out = is_given(values[kOut]) ? values[kOut] : NULL;
  DLTensor q, k, v, options[kTensorOptions];
  if (!view(values[kQ], "q", &q) || !view(values[kK], "k", &k) || !view(values[kV], "v", &v) ||
      !view_options(values, settings, options) || !require_ranks(&q, &v, &settings->options)) {
    return NULL;
  }
  if (!find_stream(api, values[kStream], q.device, &settings->options.stream)) return NULL;
  Output out = {0}, lse = {0};
  PyObject* result = NULL;
  flashjit_status status = FLASHJIT_OK;
  if ((given_out ? view(given_out, "out", &out.view) : allocate_out(api, &q, &v, &out)) &&
      (!with_lse || allocate_lse(api, &q, &lse))) {
    settings->options.lse = with_lse ? &lse.view : NULL;
    set_out_dtype(settings, &q, &out.view);
    status = run(settings, &q, &k, &v, &out.view);
    if (status == FLASHJIT_OK && (!given_out || mark_written(given_out)))
      result = to_result(api, given_out, &out, &lse);
  }
  discard(&out);
  discard(&lse);
  return status == FLASHJIT_OK ? result : raise_status(status);
}

/* --- The two functions ------------------------------------------------------------------------------------------- */

/* Tensor options by their names; NULL on failure. */
static PyObject* collect_tensors(PyObject* const* values) {
  PyObject* const tensors = PyDict_New();
  for (int i = kTensors; tensors && i < kTensors + kTensorOptions; ++i) {
    if (!is_given(values[i]) || PyDict_SetItem(tensors, names[i], values[i]) == 0) continue;
    Py_DECREF(tensors);
    return NULL;
  }
  return tensors;
}

/* With None for what is not given: all before the tensor options, the engine, and a dict of those. */
static PyObject* attend_by_python(PyObject* const* values) {
  PyObject* const function = import_attribute("flashjit._arrays", "attention");
  PyObject* const tensors = collect_tensors(values);
  PyObject* const arguments = PyTuple_New(kTensors + 2);
  PyObject* result = NULL;
  if (function && tensors && arguments) {
    for (int i = 0; i <= kTensors; ++i) {
      PyObject* const given = values[i < kTensors ? i : kEngine];
      PyObject* const value = given ? given : Py_None;
      Py_INCREF(value);
      PyTuple_SetItem(arguments, i, value);
    }
    Py_INCREF(tensors);
    PyTuple_SetItem(arguments, kTensors + 1, tensors);
    result = PyObject_CallObject(function, arguments);
  }
  Py_XDECREF(arguments);
  Py_XDECREF(tensors);
  Py_XDECREF(function);
  return result;
}

static int has_table(PyObject* array) { return array_type_of(array)->api != NULL; }
static int is_none_or_has_table(PyObject* array) { return !is_given(array) || has_table(array); }

static int captures_have_tables(const GivenFunction* function) {
  const Py_ssize_t count = function->text ? PyTuple_Size(function->tensors) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const pair = PyTuple_GetItem(function->tensors, i);
    if (PyTuple_Check(pair) && PyTuple_Size(pair) == 2 && !has_table(PyTuple_GetItem(pair, 1))) return 0;
  }
  return 1;
}

static int all_have_tables(PyObject* const* values, const GivenFunction* score, const GivenFunction* mask) {
  if (!has_table(values[kQ]) || !has_table(values[kK]) || !has_table(values[kV])) return 0;
  for (int i = 0; i < kTensorOptions; ++i) {
    if (!is_none_or_has_table(values[kTensors + i])) return 0;
  }
  return is_none_or_has_table(values[kOut]) && captures_have_tables(score) && captures_have_tables(mask);
}

static int prepare_names(void) {
  return (requires_grad || (requires_grad = PyUnicode_InternFromString("requires_grad"))) &&
         (is_neg || (is_neg = PyUnicode_InternFromString("is_neg"))) &&
         (current_level || (current_level = PyUnicode_InternFromString("_current_level")));
}

static PyObject* attend_by_tables(PyObject* const* values, const GivenFunction* score, const GivenFunction* mask) {
  const GivenSettings given = {.engine = values[kEngine],
                               .causal = values[kCausal],
                               .window = values[kWindow],
                               .chunk = values[kChunk],
                               .scale = values[kScale],
                               .softcap = values[kSoftcap],
                               .dropout = values[kDropout],
                               .dropout_seed = values[kDropoutSeed],
                               .dropout_offset = values[kDropoutOffset],
                               .max_seqlen_q = values[kMaxSeqlenQ],
                               .max_seqlen_kv = values[kMaxSeqlenKv],
                               .fixed_split_size = values[kFixedSplitSize],
                               .accumulate = values[kAccumulate],
                               .variant = values[kVariant],
                               .plan = values[kPlan],
                               .score = score,
                               .mask = mask};
  Settings settings;
  if (!read_settings(&settings, &given)) return NULL;
  const int with_lse = read_flag("lse", values[kLse]);
  return with_lse < 0 ? NULL : attend(values, &settings, with_lse);
}

static PyObject* call(PyObject* const* values) {
  GivenFunction score, mask;
  if (!prepare_names() || !find_function(kScoreFunction, values[kScore], &score)) return NULL;
  PyObject* result = NULL;
  if (find_function(kMaskFunction, values[kMask], &mask)) {
    const int directly = all_have_tables(values, &score, &mask);
    result = directly ? attend_by_tables(values, &score, &mask) : attend_by_python(values);
    drop_function(&mask);
  }
  drop_function(&score);
  return result;
}

PyObject* attention_function(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  (void)module;
  PyObject* values[kArguments] = {NULL};
  return read_arguments(values, kArguments, args, count, keywords) ? call(values) : NULL;
}

PyObject* attention_method(PyObject* engine, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  PyObject* values[kArguments] = {NULL};
  if (!read_arguments(values, kEngine, args, count, keywords)) return NULL;
  values[kEngine] = engine;
  return call(values);
}
