/* SPDX-License-Identifier: Apache-2.0 */
#include "python/core/core.h"

typedef struct Plan {
  PyObject_HEAD flashjit_plan* handle; /* NULL: empty, until the library has made one */
} Plan;

static PyObject* plan_type; /* made with the module, and never freed as the module is not */

/* Memory of its own goes back in stream order, so work that was enqueued before may still read it. */
static void free_plan(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  flashjit_plan_destroy(((const Plan*)self)->handle);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

static int refuse_empty(void) {
  raise_error(FLASHJIT_INVALID_ARGUMENT, "plan: must be made by flashjit.plan, was empty");
  return 0;
}

static int read_info(PyObject* self, flashjit_plan_info* info) {
  const flashjit_plan_info nothing = FLASHJIT_PLAN_INFO_INIT;
  const flashjit_plan* const handle = ((const Plan*)self)->handle;
  *info = nothing;
  if (!handle) return refuse_empty();
  if (flashjit_get_plan_info(handle, info) == FLASHJIT_OK) return 1;
  raise_status(FLASHJIT_FAILURE);
  return 0;
}

static PyObject* get_problem(PyObject* self, void* unused) {
  (void)unused;
  flashjit_plan_info info;
  return read_info(self, &info) ? PyUnicode_FromString(info.problem) : NULL;
}

static PyObject* get_variant(PyObject* self, void* unused) {
  (void)unused;
  flashjit_plan_info info;
  return read_info(self, &info) ? PyUnicode_FromString(info.variant) : NULL;
}

static PyObject* get_words(PyObject* self, void* unused) {
  (void)unused;
  flashjit_plan_info info;
  return read_info(self, &info) ? PyLong_FromLongLong(info.words) : NULL;
}

static PyGetSetDef plan_attributes[] = {
    {"problem", get_problem, NULL, "What calls with it have to be, \"fwd-bf16-d128-causal-ragged\".", NULL},
    {"variant", get_variant, NULL, "The kernel that they run, as variant= takes it.", NULL},
    {"words", get_words, NULL, "Its memory, in int32.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot plan_slots[] = {
    {Py_tp_dealloc, (void*)free_plan},
    {Py_tp_getset, plan_attributes},
    {0, NULL},
};

static PyType_Spec plan_spec = {"flashjit._core.Plan", sizeof(Plan), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                                plan_slots};

PyObject* make_plan_type(void) {
  if (!plan_type) plan_type = PyType_FromSpec(&plan_spec);
  Py_XINCREF(plan_type);
  return plan_type;
}

flashjit_plan** place_of_plan(PyObject* plan) {
  const int is_plan = PyObject_IsInstance(plan, plan_type);
  if (is_plan > 0) return &((Plan*)plan)->handle;
  if (is_plan == 0) raise_error(FLASHJIT_INVALID_ARGUMENT, "plan: must be a flashjit.Plan or None, was %.100R", plan);
  return NULL;
}

int find_plan(PyObject* plan, const flashjit_plan** handle) {
  *handle = NULL;
  if (!is_given(plan)) return 1;
  flashjit_plan** const place = place_of_plan(plan);
  if (!place) return 0;
  *handle = *place;
  return *handle || refuse_empty();
}
