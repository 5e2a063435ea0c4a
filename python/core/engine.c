/* SPDX-License-Identifier: Apache-2.0 */
#include "python/core/core.h"

typedef struct Engine {
  PyObject_HEAD flashjit_engine* handle;
  int emulates;
} Engine;

static PyObject* engine_type;    /* made with the module, and never freed as the module is not */
static PyObject* default_engine; /* an Engine, or None for the library's; NULL until it is first asked for */

static int init_engine(PyObject* self, PyObject* args, PyObject* keywords) {
  static char* names[] = {"policy", "cache_directory", "bundles", "tuning", "emulate", "nvrtc_path", NULL};
  Engine* const engine = (Engine*)self;
  flashjit_engine_options options = FLASHJIT_ENGINE_OPTIONS_INIT;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|zzzzzz:Engine", names, &options.policy, &options.cache_directory,
                                   &options.bundles, &options.tuning, &options.emulate, &options.nvrtc_path)) {
    return -1;
  }
  if (engine->handle) {
    raise_error(FLASHJIT_INVALID_ARGUMENT, "Engine: must be initialised once; make another one");
    return -1;
  }
  const flashjit_status status = flashjit_engine_create(&options, &engine->handle);
  engine->emulates = options.emulate && options.emulate[0] != '\0';
  if (status == FLASHJIT_OK) return 0;
  raise_status(status);
  return -1;
}

/* Kernels may still run on a GPU when Python drops its last reference, and only the end of the process is known to come
   after them: such an engine is left to it. In the emulator calls have finished when they return. */
static void free_engine(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  const Engine* const engine = (const Engine*)self;
  if (engine->emulates) flashjit_engine_destroy(engine->handle);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyDoc_STRVAR(attention_doc,
             "attention($self, q, k, v, *, causal=False, window=None, chunk=None, scale=None, softcap=0.0, "
             "alibi_slopes=None, sinks=None, bias=None, boolean_mask=None, documents=None, prefix=None, tree=None, "
             "score=None, mask=None, query_offsets=None, key_offsets=None, block_mask=None, dropout=0.0, "
             "dropout_seed=0, dropout_offset=0, dropout_state=None, dropout_mask=None, cu_seqlens_q=None, "
             "cu_seqlens_kv=None, seqused_q=None, seqused_kv=None, leftpad_kv=None, batch_indices_kv=None, "
             "page_table=None, k_scale=None, v_scale=None, q_scale=None, k_rotary=None, "
             "out_scale=None, max_seqlen_q=0, max_seqlen_kv=0, fixed_split_size=0, accumulate='exact', plan=None, "
             "out=None, lse=False, stream=None, variant=None)\n"
             "--\n\n"
             "As flashjit.attention, with this engine.");

static PyMethodDef engine_methods[] = {
    {"attention", (PyCFunction)(void (*)(void))attention_method, METH_FASTCALL | METH_KEYWORDS, attention_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot engine_slots[] = {
    {Py_tp_init, (void*)init_engine},
    {Py_tp_dealloc, (void*)free_engine},
    {Py_tp_methods, engine_methods},
    {0, NULL},
};

static PyType_Spec engine_spec = {"flashjit._core.Engine", sizeof(Engine), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                                  engine_slots};

PyObject* make_engine_type(void) {
  if (!engine_type) engine_type = PyType_FromSpec(&engine_spec);
  Py_XINCREF(engine_type);
  return engine_type;
}

static PyObject* find_default_engine(void) {
  if (default_engine) return default_engine;
  PyObject* const make = import_attribute("flashjit", "_make_default_engine");
  if (!make) return NULL;
  PyObject* const made = PyObject_CallObject(make, NULL);
  Py_DECREF(make);
  if (!default_engine) {
    default_engine = made;
  } else {
    Py_XDECREF(made); /* another thread was faster */
  }
  return default_engine;
}

int find_engine(PyObject* engine, flashjit_engine** handle) {
  *handle = NULL;
  if (!engine || engine == Py_None) engine = find_default_engine();
  if (!engine) return 0;
  if (engine == Py_None) return 1;
  const int is_engine = PyObject_IsInstance(engine, engine_type);
  if (is_engine < 0) return 0;
  if (is_engine) *handle = ((const Engine*)engine)->handle;
  if (*handle) return 1;
  raise_error(FLASHJIT_INVALID_ARGUMENT, "engine: must be a flashjit.Engine, was %R", engine);
  return 0;
}

PyObject* engine_address(PyObject* module, PyObject* engine) {
  (void)module;
  flashjit_engine* handle;
  return find_engine(engine, &handle) ? PyLong_FromVoidPtr(handle) : NULL;
}

PyObject* counters(PyObject* module, PyObject* engine) {
  (void)module;
  flashjit_engine* handle;
  if (!find_engine(engine, &handle)) return NULL;
  flashjit_counters counted = FLASHJIT_COUNTERS_INIT;
  const flashjit_status status = flashjit_get_counters(handle, &counted);
  if (status != FLASHJIT_OK) return raise_status(status);
  return Py_BuildValue("{sKsKsKsKsKsKsK}", "memory_hits", counted.memory_hits, "disk_hits", counted.disk_hits, "misses",
                       counted.misses, "compiles", counted.compiles, "tunings", counted.tunings, "timed_launches",
                       counted.timed_launches, "records_used", counted.records_used);
}
