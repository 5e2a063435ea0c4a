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
  kAlibiSlopes,
  kSinks,
  kOut,
  kLse,
  kStream,
  kVariant,
  kEngine,
  kArguments
};
enum { kPositional = kV + 1 };
static const char* const kNames[kArguments] = {"q",     "k",     "v",       "causal",       "window",
                                               "chunk", "scale", "softcap", "alibi_slopes", "sinks",
                                               "out",   "lse",   "stream",  "variant",      "engine"};
static PyObject* names[kArguments];

int prepare_keywords(void) {
  for (int i = 0; i < kArguments; ++i) {
    names[i] = PyUnicode_InternFromString(kNames[i]);
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
    if (PyUnicode_CompareWithASCIIString(keyword, kNames[i]) == 0) return i;
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

static int is_given(PyObject* value) { return value && value != Py_None; }

/* In the place of what a conversion raised, which does not know the argument. What else the value's own code raised,
   an interrupt for example, stays. Always 0. */
static int refuse_value(const char* name, const char* must, PyObject* value) {
  PyObject* const ours[] = {PyExc_TypeError, PyExc_ValueError, PyExc_OverflowError, PyExc_LookupError};
  int is_ours = !PyErr_Occurred();
  for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); ++i) is_ours = is_ours || PyErr_ExceptionMatches(ours[i]);
  if (!is_ours) return 0;
  PyErr_Clear();
  raise_error(FLASHJIT_INVALID_ARGUMENT, "%s: must be %s, was %.100R", name, must, value);
  return 0;
}

/* Of a new reference, which it takes. */
static int take_int64(PyObject* value, int64_t* number) {
  PyObject* const index = value ? PyNumber_Index(value) : NULL;
  *number = index ? PyLong_AsLongLong(index) : -1;
  Py_XDECREF(index);
  Py_XDECREF(value);
  return !PyErr_Occurred();
}

static int read_window(PyObject* pair, flashjit_window* window) {
  if ((PyTuple_Check(pair) || PyList_Check(pair)) && PySequence_Size(pair) == 2 &&
      take_int64(PySequence_GetItem(pair, 0), &window->left) &&
      take_int64(PySequence_GetItem(pair, 1), &window->right)) {
    return 1;
  }
  return refuse_value("window", "a pair (left, right) of ints of 64 bits, or None", pair);
}

/* True is for prepare(), and would be chunks of one key. */
static int read_chunk(PyObject* value, int64_t* chunk) {
  if (!PyBool_Check(value)) {
    Py_INCREF(value);
    if (take_int64(value, chunk) && *chunk >= 0) return 1;
  }
  return refuse_value("chunk", "an int from 0 to 2**63 - 1, or None", value);
}

static int read_number(const char* name, const char* must, PyObject* value, double* number) {
  *number = PyFloat_AsDouble(value);
  return !PyErr_Occurred() || refuse_value(name, must, value);
}

/* True is for prepare(), and would be a cap of 1. A number that rounds to 0 would be no cap. */
static int read_softcap(PyObject* value, float* softcap) {
  static const char must[] = "a number of float32, or None";
  double number = 0;
  if (PyBool_Check(value)) return refuse_value("softcap", must, value);
  if (!read_number("softcap", must, value, &number)) return 0;
  *softcap = (float)number;
  return (*softcap != 0) == (number != 0) || refuse_value("softcap", must, value);
}

/* 0 for an argument that is not given; -1 on failure. */
static int read_flag(const char* name, PyObject* value) {
  const int flag = value ? PyObject_IsTrue(value) : 0;
  if (flag < 0) refuse_value(name, "True or False", value);
  return flag;
}

/* Which keys a query sees. */
static int read_masks(Settings* settings, const GivenSettings* given) {
  flashjit_attention_options* const options = &settings->options;
  options->causal = read_flag("causal", given->causal);
  if (options->causal < 0) return 0;
  if (is_given(given->window)) {
    if (!read_window(given->window, &settings->window)) return 0;
    options->window = &settings->window;
  }
  return !is_given(given->chunk) || read_chunk(given->chunk, &options->chunk);
}

/* What becomes of scores. */
static int read_scores(flashjit_attention_options* options, const GivenSettings* given) {
  if (is_given(given->scale)) {
    double number = 0;
    if (!read_number("scale", "a number", given->scale, &number)) return 0;
    options->has_softmax_scale = 1;
    options->softmax_scale = (float)number;
  }
  return !is_given(given->softcap) || read_softcap(given->softcap, &options->softcap);
}

int read_settings(Settings* settings, const GivenSettings* given) {
  const flashjit_attention_options defaults = FLASHJIT_ATTENTION_OPTIONS_INIT;
  flashjit_attention_options* const options = &settings->options;
  *options = defaults;
  if (!find_engine(given->engine, &settings->engine)) return 0;
  if (!read_masks(settings, given) || !read_scores(options, given)) return 0;
  if (!is_given(given->variant) || PyArg_Parse(given->variant, "s:attention", &options->variant)) return 1;
  return refuse_value("variant", "a str without null characters", given->variant);
}

flashjit_status run(const Settings* settings, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                    const DLTensor* out) {
  flashjit_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = flashjit_attention(settings->engine, q, k, v, out, &settings->options);
  Py_END_ALLOW_THREADS;
  return status;
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

static int view(PyObject* const* values, enum Argument argument, DLTensor* tensor) {
  PyObject* const array = values[argument];
  const ArrayType* const type = array_type_of(array);
  if (type->has_gradient && !check_tensor(array, type, kNames[argument])) return 0;
  if (type->api->view_array(array, tensor) == 0) return 1;
  PyErr_Clear(); /* it does not know the argument */
  check_by_python("refuse_array", kNames[argument], array);
  return 0;
}

/* *tensor becomes NULL where none is given, and otherwise memory. */
static int view_if_given(PyObject* const* values, enum Argument argument, DLTensor* memory, const DLTensor** tensor) {
  *tensor = is_given(values[argument]) ? memory : NULL;
  return !*tensor || view(values, argument, memory);
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

static int require_rank(const char* name, const DLTensor* tensor) {
  if (tensor->ndim == 4) return 1;
  raise_error(FLASHJIT_INVALID_ARGUMENT, "%s: rank must be 4, was %d", name, (int)tensor->ndim);
  return 0;
}

/* [batch, seqlen_q, heads, head_dim_v], like q in all else. */
static int allocate_out(const ExchangeApi* api, const DLTensor* q, const DLTensor* v, Output* out) {
  if (!require_rank("q", q) || !require_rank("v", v)) return 0;
  int64_t shape[] = {q->shape[0], q->shape[1], q->shape[2], v->shape[3]};
  const DLTensor prototype = {NULL, q->device, 4, q->dtype, shape, NULL, 0};
  return allocate(api, prototype, out);
}

/* f32 [batch, heads, seqlen_q]. */
static int allocate_lse(const ExchangeApi* api, const DLTensor* q, Output* lse) {
  if (!require_rank("q", q)) return 0;
  int64_t shape[] = {q->shape[0], q->shape[2], q->shape[1]};
  const DLDataType f32 = {kDLFloat, 32, 1};
  const DLTensor prototype = {NULL, q->device, 3, f32, shape, NULL, 0};
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
  DLTensor q, k, v, slopes, sinks;
  if (!view(values, kQ, &q) || !view(values, kK, &k) || !view(values, kV, &v) ||
      !view_if_given(values, kAlibiSlopes, &slopes, &settings->options.alibi_slopes) ||
      !view_if_given(values, kSinks, &sinks, &settings->options.sinks)) {
    return NULL;
  }
  if (!find_stream(api, values[kStream], q.device, &settings->options.stream)) return NULL;
  Output out = {0}, lse = {0};
  PyObject* result = NULL;
  flashjit_status status = FLASHJIT_OK;
  if ((given_out ? view(values, kOut, &out.view) : allocate_out(api, &q, &v, &out)) &&
      (!with_lse || allocate_lse(api, &q, &lse))) {
    settings->options.lse = with_lse ? &lse.view : NULL;
    status = run(settings, &q, &k, &v, &out.view);
    if (status == FLASHJIT_OK && (!given_out || mark_written(given_out)))
      result = to_result(api, given_out, &out, &lse);
  }
  discard(&out);
  discard(&lse);
  return status == FLASHJIT_OK ? result : raise_status(status);
}

/* --- The two functions ------------------------------------------------------------------------------------------- */

static PyObject* attend_by_python(PyObject* const* values) {
  PyObject* const function = import_attribute("flashjit._arrays", "attention");
  PyObject* const arguments = PyTuple_New(kArguments);
  for (int i = 0; arguments && i < kArguments; ++i) {
    PyObject* const value = values[i] ? values[i] : Py_None;
    Py_INCREF(value);
    PyTuple_SetItem(arguments, i, value);
  }
  PyObject* const result = function && arguments ? PyObject_CallObject(function, arguments) : NULL;
  Py_XDECREF(arguments);
  Py_XDECREF(function);
  return result;
}

static int has_table(PyObject* array) { return array_type_of(array)->api != NULL; }
static int is_none_or_has_table(PyObject* array) { return !is_given(array) || has_table(array); }

static int all_have_tables(PyObject* const* values) {
  return has_table(values[kQ]) && has_table(values[kK]) && has_table(values[kV]) &&
         is_none_or_has_table(values[kAlibiSlopes]) && is_none_or_has_table(values[kSinks]) &&
         is_none_or_has_table(values[kOut]);
}

static int prepare_names(void) {
  return (requires_grad || (requires_grad = PyUnicode_InternFromString("requires_grad"))) &&
         (is_neg || (is_neg = PyUnicode_InternFromString("is_neg"))) &&
         (current_level || (current_level = PyUnicode_InternFromString("_current_level")));
}

static PyObject* call(PyObject* const* values) {
  if (!prepare_names()) return NULL;
  if (!all_have_tables(values)) return attend_by_python(values);
  const GivenSettings given = {.engine = values[kEngine],
                               .causal = values[kCausal],
                               .window = values[kWindow],
                               .chunk = values[kChunk],
                               .scale = values[kScale],
                               .softcap = values[kSoftcap],
                               .variant = values[kVariant]};
  Settings settings;
  if (!read_settings(&settings, &given)) return NULL;
  const int with_lse = read_flag("lse", values[kLse]);
  return with_lse < 0 ? NULL : attend(values, &settings, with_lse);
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
