/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "python/core/core.h"

/* In two parts, as compilers need not take longer literals. */
PyDoc_STRVAR(
    attention_doc_of_arrays,
    "attention(q, k, v, *, causal=False, window=None, chunk=None, scale=None, softcap=0.0, alibi_slopes=None, "
    "sinks=None, bias=None, boolean_mask=None, documents=None, prefix=None, tree=None, score=None, mask=None, "
    "query_offsets=None, key_offsets=None, block_mask=None, dropout=0.0, dropout_seed=0, dropout_offset=0, "
    "dropout_state=None, dropout_mask=None, cu_seqlens_q=None, cu_seqlens_kv=None, seqused_q=None, seqused_kv=None, "
    "leftpad_kv=None, batch_indices_kv=None, page_table=None, k_scale=None, v_scale=None, q_scale=None, "
    "k_rotary=None, out_scale=None, max_seqlen_q=0, max_seqlen_kv=0, fixed_split_size=0, accumulate='exact', "
    "plan=None, out=None, "
    "lse=False, stream=None, variant=None, engine=None)\n"
    "--\n\n"
    "softmax(scale * q k^T) v, enqueued on a CUDA stream.\n\n"
    "Parameters\n"
    "----------\n"
    "q : array [batch, seqlen_q, heads_q, head_dim]\n"
    "    float16 or bfloat16, of any library that speaks DLPack or __cuda_array_interface__. Any strides, but a\n"
    "    contiguous last dimension. Beside cu_seqlens_q [total, heads_q, head_dim], and so are out and lse. Beside k "
    "of\n"
    "    float8_e4m3fn or float8_e5m2 also of that: see q_scale.\n"
    "k : array [batch, seqlen_kv, heads_kv, head_dim]\n"
    "v : array [batch, seqlen_kv, heads_kv, head_dim_v]\n"
    "    The dtype of q, or float8_e4m3fn or float8_e5m2, as caches have it: see k_scale. Beside other q these need\n"
    "    compute capability 9.0, or with k_rotary 8.9 or more, which float8_e5m2 does not; beside q of theirs 8.9.\n"
    "    heads_kv divides heads_q. Beside cu_seqlens_kv [total, heads_kv, ...], beside page_table [pages, page_size,\n"
    "    heads_kv, ...].\n"
    "causal : bool\n"
    "    Query i sees the keys up to i + seqlen_kv - seqlen_q.\n"
    "window : (left, right)\n"
    "    Query i sees at most left keys before key i + seqlen_kv - seqlen_q, that key itself, and at most right keys\n"
    "    after it; -1 is all on that side. No window when None.\n"
    "chunk : int\n"
    "    Keys are cut into chunks of so many, of which query i sees the one that key i + seqlen_kv - seqlen_q is in.\n"
    "    No chunks when 0 or None.\n"
    "scale : float\n"
    "    1 / sqrt(head_dim) when None.\n"
    "softcap : float\n"
    "    Scores become softcap * tanh(score / softcap), for caps from 1e-6 to 1e6. Not capped when 0 or None.\n"
    "alibi_slopes : array [heads_q] or [batch, heads_q]\n"
    "    float32, up to 64 in magnitude. The score of query i and key j loses slope * |i + seqlen_kv - seqlen_q - j|,\n"
    "    after the cap. Nothing when None.\n"
    "sinks : array [heads_q] or [batch, heads_q]\n"
    "    float32, below 2e38 in magnitude, or -inf for none. One more score in the softmax of each row, that no key\n"
    "    stands for. No sinks when None.\n"
    "bias : array [batch, heads_q, seqlen_q, seqlen_kv]\n"
    "    float16, bfloat16 or float32; any size but the last may be 1 for all. Added to scores after cap and slopes; "
    "-inf\n"
    "    hides the key. Nothing when None.\n"
    "boolean_mask : array of bool, shapes as of bias\n"
    "    A query does not see the keys where it is False. All when None.\n"
    "documents : array [batch, seqlen_kv], batch may be 1 for all\n"
    "    int32, the document of each key: query i sees the keys of the document of key i + seqlen_kv - seqlen_q.\n"
    "prefix : array [batch]\n"
    "    int32: a query sees keys as with causal, and the first so many.\n"
    "tree : array [batch, seqlen_q, words], batch may be 1 for all\n"
    "    int64. The last seqlen_q keys are the queries' own: query i sees those whose bit is set, key seqlen_kv -\n"
    "    seqlen_q + j in bit j % 64 of word j // 64, and all keys before them.\n"
    "score : flashjit.Score or str\n"
    "    What becomes of scores after all else, as text. They stay when None.\n"
    "mask : flashjit.Mask or str\n"
    "    Which keys a query sees of those that it would else, as text.\n"
    "query_offsets, key_offsets : array [batch]\n"
    "    int32: what score and mask call the first query and the first key of each sequence. 0 when None.\n"
    "block_mask : array of int32\n"
    "    What flashjit.block_mask made of boolean_mask, documents, tree and mask, for speed.\n");
PyDoc_STRVAR(
    attention_doc_of_the_rest,
    "dropout : float\n"
    "    Probability with which those of the softmax become 0; see flashjit.dropout_mask. None when 0 or None.\n"
    "dropout_seed, dropout_offset : int, from 0 to 2**64 - 1\n"
    "dropout_state : array [2]\n"
    "    int64: seed and offset on the device, in place of those.\n"
    "dropout_mask : array of bool, shapes as of bias\n"
    "    What stays, in place of a random choice.\n"
    "cu_seqlens_q, cu_seqlens_kv : array [batch + 1]\n"
    "    int32, for sequences of different lengths, one behind the other: sequence b has the rows from [b] to\n"
    "    [b + 1] of q and out, or of k and v. All options hold for each sequence by itself. Not beside block_mask.\n"
    "seqused_q, seqused_kv : array [batch]\n"
    "    int32: of the rows of a sequence, packed or in a batch entry of its own, the first so many count.\n"
    "leftpad_kv : array [batch]\n"
    "    int32: of these rows of k and v the first so many do not count.\n"
    "batch_indices_kv : array [batch]\n"
    "    int32: the batch entry of k and v that has the keys of the sequence. Not beside cu_seqlens_kv.\n"
    "page_table : array [batch, entries]\n"
    "    int32, for keys and values in pages: key j of sequence b is row j % page_size of page [b, j // page_size] of\n"
    "    k and v, and seqused_kv says how many there are. With batch_indices_kv sequence b has that row of the table.\n"
    "    Not beside cu_seqlens_kv and leftpad_kv.\n"
    "k_scale, v_scale : array [1], [heads_kv], or the shape of k without its last dimension\n"
    "    float32, for k and v of 8 bits: what their elements are multiplied by. Both or none. 1 when None.\n"
    "    Beside q of 8 bits [1], [heads_kv], [batch, heads_kv], or of blocks of 128 rows [batch, heads_kv,\n"
    "    ceil(seqlen_kv / 128)], positive, and each may be None.\n"
    "q_scale : array [1], [heads_q], [batch, heads_q] or [batch, heads_q, ceil(seqlen_q / 128)]\n"
    "    float32, likewise of q of 8 bits, as flashjit.quantize makes it. Products are of 8 bits then, and the\n"
    "    output is bfloat16, or what out is. 1 when None. Scales of blocks want sequences of one length, and sums are\n"
    "    exact beside them.\n"
    "k_rotary : array [batch, seqlen_kv, heads_kv, rotary_dim], or as k else has it\n"
    "    Of the dtype of q, without scales: the last columns of keys, as caches of MLA have them apart. k then has\n"
    "    the head_dim of v, a multiple of 16, and may be the same memory; q has that and rotary_dim, more than 256\n"
    "    together. Not beside q of 8 bits. k has all columns when None.\n"
    "out_scale : array [1]\n"
    "    float32, of an out of float8_e4m3fn beside such q: what it is to be multiplied by. 1 when None.\n"
    "max_seqlen_q, max_seqlen_kv : int\n"
    "    Upper bounds of these lengths: bias and other arrays of queries and keys have these sizes, and a kernel is\n"
    "    chosen by them. As many as there are rows when 0 or None.\n"
    "fixed_split_size : int\n"
    "    Batch-invariant: keys are split so many at a time, rounded up to a multiple of 64, and what comes of a row\n"
    "    depends, bit by bit, on that row alone: not on what it is computed with, nor on how many queries there are.\n"
    "    0 or None: as the GPU wants it.\n"
    "accumulate : 'exact' or 'fast'\n"
    "    Beside q of 8 bits: products with values are summed in float32, or by the tensor core alone, which\n"
    "    loses some of long sums of values that have a mean.\n"
    "plan : flashjit.Plan\n"
    "    What flashjit.plan made for calls with these options and sizes, for speed: the call makes no list of tiles.\n"
    "    None when None.\n"
    "out : array [batch, seqlen_q, heads_q, head_dim_v]\n"
    "    Written, and returned; a new array when None.\n"
    "lse : bool\n"
    "    Return (out, lse), where lse is the log-sum-exp of each row: float32 [batch, heads_q, seqlen_q],\n"
    "    or [heads_q, total].\n"
    "stream : int or object with __cuda_stream__, cuda_stream or ptr\n"
    "    The current stream of q's library when None.\n"
    "variant : str\n"
    "    One that `flashjit variants` lists; the library chooses when None.\n"
    "engine : flashjit.Engine\n"
    "    The default engine when None.\n\n"
    "Returns\n"
    "-------\n"
    "An array of q's library, or a pair of them.\n\n"
    "Raises\n"
    "------\n"
    "flashjit.Error\n"
    "    Of the kind of what is wrong: InvalidArgument names the argument, what it must be and what it was.");

static char attention_doc[sizeof attention_doc_of_arrays + sizeof attention_doc_of_the_rest - 1];

static void join_attention_doc(void) {
  strcpy(attention_doc, attention_doc_of_arrays);
  strcat(attention_doc, attention_doc_of_the_rest);
}

static PyObject* version(PyObject* module, PyObject* unused) {
  (void)module;
  (void)unused;
  return PyUnicode_FromString(flashjit_version());
}

static PyMethodDef functions[] = {
    {"attention", (PyCFunction)(void (*)(void))attention_function, METH_FASTCALL | METH_KEYWORDS, attention_doc},
    {"launch", launch, METH_VARARGS, NULL},
    {"append", append, METH_VARARGS, NULL},
    {"backward", backward, METH_VARARGS, NULL},
    {"block_mask", make_block_mask, METH_VARARGS, NULL},
    {"block_mask_dims", block_mask_dims, METH_VARARGS, NULL},
    {"dropout_mask", make_dropout_mask, METH_VARARGS, NULL},
    {"merge", merge, METH_VARARGS, NULL},
    {"plan", make_plan, METH_VARARGS, NULL},
    {"prepare", prepare, METH_VARARGS, NULL},
    {"quantize", quantize, METH_VARARGS, NULL},
    {"reference", reference, METH_VARARGS, NULL},
    {"reference_backward", reference_backward, METH_VARARGS, NULL},
    {"counters", counters, METH_O, NULL},
    {"engine_address", engine_address, METH_O, NULL},
    {"version", version, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "_core", .m_size = -1, .m_methods = functions};

/* Of a new reference, which it takes. */
static int add(PyObject* module, const char* name, PyObject* value) {
  if (value && PyModule_AddObject(module, name, value) == 0) return 1;
  Py_XDECREF(value);
  return 0;
}

static PyObject* tensor_option_names(void) {
  PyObject* const names = PyTuple_New(kTensorOptions);
  for (int i = 0; names && i < kTensorOptions; ++i) {
    PyObject* const name = PyUnicode_FromString(tensor_options[i].name);
    if (name && PyTuple_SetItem(names, i, name) == 0) continue;
    Py_DECREF(names);
    return NULL;
  }
  return names;
}

PyMODINIT_FUNC PyInit__core(void) {
  join_attention_doc();
  PyObject* const module = PyModule_Create(&definition);
  if (!module || !prepare_keywords()) return NULL;
  if (add(module, "Engine", make_engine_type()) && add(module, "Plan", make_plan_type()) &&
      add(module, "TENSOR_OPTIONS", tensor_option_names())) {
    return module;
  }
  Py_DECREF(module);
  return NULL;
}
