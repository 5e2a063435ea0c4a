/* SPDX-License-Identifier: Apache-2.0 */
#include "python/distributed/distributed.h"

/* What of the other extension this one's options ask for: engines are its objects, and no call here has a plan. */
int find_engine(PyObject* engine, flashjit_engine** handle) {
  PyObject* const find = import_attribute("flashjit._core", "engine_address");
  PyObject* const address = find ? PyObject_CallFunctionObjArgs(find, engine ? engine : Py_None, NULL) : NULL;
  *handle = address ? PyLong_AsVoidPtr(address) : NULL;
  Py_XDECREF(address);
  Py_XDECREF(find);
  return address != NULL;
}

int find_plan(PyObject* plan, const flashjit_plan** handle) {
  (void)plan;
  *handle = NULL;
  return 1;
}

/* Of packed sequences with their offsets, which the object that they were read from has. */
typedef struct Shards {
  flashjit_sharding sharding;
  const int64_t* cu_seqlens;
  size_t sequences;
} Shards;

/* (seqlen, layout, ranks, cu_seqlens): the latter bytes of int64, or None. */
static int read_shards(PyObject* given, Shards* shards) {
  PyObject* offsets;
  if (!PyArg_ParseTuple(given, "LiiO", &shards->sharding.seqlen, &shards->sharding.layout, &shards->sharding.ranks,
                        &offsets))
    return 0;
  shards->cu_seqlens = NULL;
  shards->sequences = 0;
  if (offsets == Py_None) return 1;
  char* bytes;
  Py_ssize_t size;
  if (PyBytes_AsStringAndSize(offsets, &bytes, &size) < 0) return 0;
  shards->cu_seqlens = (const int64_t*)(const void*)bytes;
  shards->sequences = (size_t)size / sizeof(int64_t) - 1;
  return 1;
}

typedef struct Distribution {
  flashjit_distributed_options options;
  Shards keys;
} Distribution;

/* (queries, keys, scheme, ranks_of_host): two shardings, of which that of keys may be None, and numbers. */
static int read_distribution(PyObject* given, Distribution* distribution) {
  const flashjit_distributed_options defaults = FLASHJIT_DISTRIBUTED_OPTIONS_INIT;
  distribution->options = defaults;
  PyObject *queries, *keys;
  Shards of_queries;
  if (!PyArg_ParseTuple(given, "O!Oii", &PyTuple_Type, &queries, &keys, &distribution->options.scheme,
                        &distribution->options.ranks_of_host) ||
      !read_shards(queries, &of_queries) || (keys != Py_None && !read_shards(keys, &distribution->keys)))
    return 0;
  distribution->options.queries = of_queries.sharding;
  distribution->options.cu_seqlens = of_queries.cu_seqlens;
  distribution->options.sequences = of_queries.sequences;
  distribution->options.keys = keys == Py_None ? NULL : &distribution->keys.sharding;
  return 1;
}

static PyObject* to_tuple(const flashjit_span* spans, size_t count) {
  PyObject* const tuple = PyTuple_New((Py_ssize_t)count);
  for (size_t i = 0; tuple && i < count; ++i) {
    PyObject* const span = Py_BuildValue("LLL", spans[i].first, spans[i].count, spans[i].step);
    if (span && PyTuple_SetItem(tuple, (Py_ssize_t)i, span) == 0) continue;
    Py_DECREF(tuple);
    return NULL;
  }
  return tuple;
}

/* spans(sharding, rank): ((first, count, step), ...) */
static PyObject* spans(PyObject* module, PyObject* args) {
  (void)module;
  PyObject* given;
  int rank;
  Shards of;
  if (!PyArg_ParseTuple(args, "O!i:spans", &PyTuple_Type, &given, &rank) || !read_shards(given, &of)) return NULL;
  size_t count = 0;
  flashjit_status status = flashjit_packed_spans(&of.sharding, of.cu_seqlens, of.sequences, rank, NULL, 0, &count);
  if (status != FLASHJIT_OK) return raise_status(status);
  flashjit_span* const found = PyMem_Malloc((count + 1) * sizeof(flashjit_span));
  if (!found) return PyErr_NoMemory();
  status = flashjit_packed_spans(&of.sharding, of.cu_seqlens, of.sequences, rank, found, count, &count);
  PyObject* const tuple = status == FLASHJIT_OK ? to_tuple(found, count) : raise_status(status);
  PyMem_Free(found);
  return tuple;
}

/* ((scheme, bytes, calls, seconds), ...) */
static PyObject* to_estimates(const flashjit_estimate* found, size_t count) {
  PyObject* const tuple = PyTuple_New((Py_ssize_t)count);
  for (size_t i = 0; tuple && i < count; ++i) {
    PyObject* const estimate = Py_BuildValue("iLLd", found[i].scheme, found[i].bytes, found[i].calls, found[i].seconds);
    if (estimate && PyTuple_SetItem(tuple, (Py_ssize_t)i, estimate) == 0) continue;
    Py_DECREF(tuple);
    return NULL;
  }
  return tuple;
}

/* estimates(engine, (batch, heads_q, heads_kv, head_dim, head_dim_v), gradients, distribution, numbers): of calls whose
   options are no tensors and no functions. */
static PyObject* estimate(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *engine, *given, *numbers;
  int gradients;
  flashjit_whole_sizes sizes;
  Distribution distribution;
  Call call;
  begin_call(&call);
  if (!PyArg_ParseTuple(args, "O(LLLLL)pO!O!:estimates", &engine, &sizes.batch, &sizes.num_heads_q, &sizes.num_heads_kv,
                        &sizes.head_dim, &sizes.head_dim_v, &gradients, &PyTuple_Type, &given, &PyTuple_Type,
                        &numbers) ||
      !read_distribution(given, &distribution) || !read_options(&call, engine, Py_None, Py_None, numbers, NULL, 0)) {
    return NULL;
  }
  flashjit_estimate found[FLASHJIT_MOST_ESTIMATES];
  size_t count = 0;
  flashjit_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = flashjit_distributed_estimates(call.settings.engine, &sizes, gradients, &call.settings.options,
                                          &distribution.options, found, &count);
  Py_END_ALLOW_THREADS;
  return status == FLASHJIT_OK ? to_estimates(found, count) : raise_status(status);
}

/* attention(engine, group, q, k, v, out, lse, distribution, tensors, score, mask, numbers, stream): as launch of the
   other extension; distribution as above. */
static PyObject* attend(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *engine, *group, *q, *k, *v, *out, *lse, *given, *further, *score, *mask, *numbers;
  unsigned long long stream;
  flashjit_group* handle;
  Distribution distribution;
  Call call;
  begin_call(&call);
  if (!PyArg_ParseTuple(args, "OOOOOOOO!O!OOO!K:attention", &engine, &group, &q, &k, &v, &out, &lse, &PyTuple_Type,
                        &given, &PyDict_Type, &further, &score, &mask, &PyTuple_Type, &numbers, &stream) ||
      !find_group(group, &handle) || !read_distribution(given, &distribution) ||
      !read_options(&call, engine, score, mask, numbers, NULL, stream)) {
    return NULL;
  }
  const Inputs inputs = lend_inputs(&call, q, k, v);
  lend_options(&call, further);
  lend_all_captures(&call);
  const DLTensor* const out_view = lend(&call, "out", out, 1);
  call.settings.options.lse = lend(&call, "lse", lse, 1);
  flashjit_status status = FLASHJIT_OK;
  if (!call.wrong) {
    Py_BEGIN_ALLOW_THREADS;
    status = flashjit_distributed_attention(call.settings.engine, handle, inputs.q, inputs.k, inputs.v, out_view,
                                            &call.settings.options, &distribution.options);
    Py_END_ALLOW_THREADS;
  }
  return finish_call(&call, status);
}

/* backward(engine, group, dout, q, k, v, out, lse, (dq, dk, dv, dbias, dslopes, dsinks), deterministic, distribution,
   tensors, score, mask, numbers, stream): likewise. */
static PyObject* differentiate(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *engine, *group, *dout, *q, *k, *v, *out, *lse, *given, *further, *score, *mask, *numbers;
  Gradients gradients;
  int deterministic;
  unsigned long long stream;
  flashjit_group* handle;
  Distribution distribution;
  Call call;
  begin_call(&call);
  if (!PyArg_ParseTuple(args, "OOOOOOOO(OOOOOO)pO!O!OOO!K:backward", &engine, &group, &dout, &q, &k, &v, &out, &lse,
                        &gradients.dq, &gradients.dk, &gradients.dv, &gradients.dbias, &gradients.dslopes,
                        &gradients.dsinks, &deterministic, &PyTuple_Type, &given, &PyDict_Type, &further, &score, &mask,
                        &PyTuple_Type, &numbers, &stream) ||
      !find_group(group, &handle) || !read_distribution(given, &distribution) ||
      !read_options(&call, engine, score, mask, numbers, NULL, stream)) {
    return NULL;
  }
  const DLTensor* const dout_view = lend(&call, "dout", dout, 0);
  const Inputs inputs = lend_inputs(&call, q, k, v);
  const DLTensor* const out_view = lend(&call, "out", out, 0);
  const DLTensor* const lse_view = lend(&call, "lse", lse, 0);
  lend_options(&call, further);
  lend_all_captures(&call);
  flashjit_gradients into = lend_gradients(&call, &gradients);
  into.deterministic = deterministic;
  flashjit_status status = FLASHJIT_OK;
  if (!call.wrong) {
    Py_BEGIN_ALLOW_THREADS;
    status = flashjit_distributed_attention_backward(call.settings.engine, handle, dout_view, inputs.q, inputs.k,
                                                     inputs.v, out_view, lse_view, &into, &call.settings.options,
                                                     &distribution.options);
    Py_END_ALLOW_THREADS;
  }
  return finish_call(&call, status);
}

/* agree(engine, group) */
static PyObject* agree(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *engine, *group;
  flashjit_engine* computes;
  flashjit_group* handle;
  if (!PyArg_ParseTuple(args, "OO:agree", &engine, &group) || !find_engine(engine, &computes) ||
      !find_group(group, &handle)) {
    return NULL;
  }
  flashjit_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = flashjit_distributed_agree(computes, handle);
  Py_END_ALLOW_THREADS;
  if (status != FLASHJIT_OK) return raise_status(status);
  Py_RETURN_NONE;
}

/* gather(engine, group, shard, whole, sharding, stream) */
static PyObject* gather_shards(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *engine, *group, *shard, *whole, *given;
  unsigned long long stream;
  flashjit_engine* computes;
  flashjit_group* handle;
  Shards shards;
  Call call;
  begin_call(&call);
  if (!PyArg_ParseTuple(args, "OOOOO!K:gather", &engine, &group, &shard, &whole, &PyTuple_Type, &given, &stream) ||
      !find_engine(engine, &computes) || !find_group(group, &handle) || !read_shards(given, &shards)) {
    return NULL;
  }
  const DLTensor* const shard_view = lend(&call, "shard", shard, 0);
  const DLTensor* const whole_view = lend(&call, "whole", whole, 1);
  flashjit_status status = FLASHJIT_OK;
  if (!call.wrong) {
    Py_BEGIN_ALLOW_THREADS;
    status = flashjit_distributed_gather_packed(computes, handle, shard_view, whole_view, &shards.sharding,
                                                shards.cu_seqlens, shards.sequences, (void*)(uintptr_t)stream);
    Py_END_ALLOW_THREADS;
  }
  return finish_call(&call, status);
}

static PyMethodDef functions[] = {
    {"agree", agree, METH_VARARGS, NULL},
    {"attention", attend, METH_VARARGS, NULL},
    {"backward", differentiate, METH_VARARGS, NULL},
    {"carry", carry_messages, METH_VARARGS, NULL},
    {"close", close_group, METH_O, NULL},
    {"estimates", estimate, METH_VARARGS, NULL},
    {"gather", gather_shards, METH_VARARGS, NULL},
    {"join", join_group, METH_VARARGS, NULL},
    {"make_unique_id", make_unique_id, METH_NOARGS, NULL},
    {"spans", spans, METH_VARARGS, NULL},
    {"wait", wait_for_group, METH_O, NULL},
    {"wrap", wrap_communicator, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "_distributed", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__distributed(void) {
  PyObject* const module = PyModule_Create(&definition);
  PyObject* const group = module ? make_group_type() : NULL;
  if (group && PyModule_AddObject(module, "Group", group) == 0) return module;
  Py_XDECREF(group);
  Py_XDECREF(module);
  return NULL;
}
